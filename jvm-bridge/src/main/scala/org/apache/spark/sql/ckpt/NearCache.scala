package org.apache.spark.sql.ckpt

/** Values of recently used keys of one store at one version, in front of the secondary; bounded in bytes.
  *
  * Two generations: new and used entries go to the young map; when it holds half of the budget it becomes the old one
  * and the former old one is dropped. Never wrong, only incomplete: it is tagged with the version it shows, leased to
  * one transaction at a time, and emptied when the next transaction starts from another version.
  */
private[ckpt] final class NearCache(budget: MemoryBudget) {
  private var young = new ByteMap
  private var old = new ByteMap
  private var tag: String = NearCache.NoVersion
  private var leased = false

  budget.cacheOpened()

  def bytes: Long = young.bytes + old.bytes

  /** Gives the cache to a transaction on `version`; false when another one has it. */
  def lease(version: String): Boolean = synchronized {
    if (leased) {
      false
    } else {
      leased = true
      if (tag != version) {
        young = new ByteMap
        old = new ByteMap
        tag = version
      }
      true
    }
  }

  /** Ends the lease; the contents are those of `version` from now on. */
  def giveBack(version: String): Unit = synchronized {
    tag = version
    leased = false
  }

  /** Ends the lease of a transaction that was not applied whole. */
  def discard(): Unit = synchronized {
    young = new ByteMap
    old = new ByteMap
    tag = NearCache.NoVersion
    leased = false
  }

  def close(): Unit = budget.cacheClosed()

  /** The map that holds `key` with `entry` set, or null. Used entries move to the young map. */
  def find(key: Array[Byte], length: Int, hash: Int, found: NearCache.Found): Boolean = {
    var entry = young.find(key, length, hash)
    if (entry < 0) {
      val before = old.find(key, length, hash)
      if (before < 0) return false
      entry = young.insert(key, length, hash)
      if (old.isDeleted(before)) young.delete(entry)
      else young.put(entry, old.valueSlab(before), old.valueOffset(before), old.valueLength(before))
      val map = young
      turnWhenFull()
      found.set(map, entry)
    } else {
      found.set(young, entry)
    }
    true
  }

  def put(key: Array[Byte], length: Int, hash: Int, value: Array[Byte], from: Int, valueLength: Int,
      found: NearCache.Found): Unit = {
    val map = young
    val entry = map.findOrInsert(key, length, hash)
    map.put(entry, value, from, valueLength)
    turnWhenFull()
    found.set(map, entry)
  }

  /** Takes over what a committed transaction wrote. */
  def apply(written: ByteMap): Unit = {
    var entry = 0
    var scratch = new Array[Byte](64)
    while (entry < written.size) {
      if (written.isWritten(entry)) {
        val length = written.keyLength(entry)
        if (scratch.length < length) scratch = new Array[Byte](length * 2)
        System.arraycopy(written.keySlab(entry), written.keyOffset(entry), scratch, 0, length)
        val hash = written.hash(entry)
        val mine = young.findOrInsert(scratch, length, hash)
        if (written.isDeleted(entry)) young.delete(mine)
        else young.put(mine, written.valueSlab(entry), written.valueOffset(entry), written.valueLength(entry))
        turnWhenFull()
      }
      entry += 1
    }
  }

  private def turnWhenFull(): Unit = {
    if (young.bytes > budget.bytesPerCache / 2) {
      old = young
      young = new ByteMap
    }
  }
}

private[ckpt] object NearCache {
  private val NoVersion = ""

  /** Where a look-up found its value; one per transaction, reused. */
  final class Found {
    var map: ByteMap = _
    var entry: Int = -1
    def set(map: ByteMap, entry: Int): Unit = {
      this.map = map
      this.entry = entry
    }
  }
}
