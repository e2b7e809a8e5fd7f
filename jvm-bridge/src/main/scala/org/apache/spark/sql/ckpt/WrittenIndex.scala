package org.apache.spark.sql.ckpt

import java.util.{Arrays, TreeMap}

import scala.collection.mutable

/** Finds the written entries of one state by the range of keys that a scan asks for. */
private[ckpt] trait WrittenIndex {
  def add(entry: Int): Unit

  /** Entries of [lower, upper) in key order; upper null: to the end of the state. */
  def range(lower: Array[Byte], upper: Array[Byte]): Array[Int]
}

private[ckpt] object WrittenIndex {
  def of(state: Int, map: ByteMap): WrittenIndex =
    if (KeyCodec.isOrdered(state)) new OrderedIndex(map) else new HashIndex(map)
}

/** For states in key order: any range. */
private[ckpt] final class OrderedIndex(map: ByteMap) extends WrittenIndex {
  private val entries = new TreeMap[Array[Byte], Integer]((left, right) => Arrays.compareUnsigned(left, right))

  override def add(entry: Int): Unit = entries.put(map.key(entry), entry)

  override def range(lower: Array[Byte], upper: Array[Byte]): Array[Int] = {
    val range = if (upper == null) entries.tailMap(lower, true) else entries.subMap(lower, true, upper, false)
    val found = mutable.ArrayBuilder.make[Int]
    range.values.forEach(entry => found += entry.intValue)
    found.result()
  }
}

/** For hashed states, which are scanned by prefixes only, and every prefix has its hash: chains of entries by hash. */
private[ckpt] final class HashIndex(map: ByteMap) extends WrittenIndex {
  import HashIndex._

  private var heads = new Array[Long](64) // hash in the high half, the chain's first entry + 1 in the low; 0 = free
  private var chains = 0
  private var next = new Array[Int](64)

  override def add(entry: Int): Unit = {
    if (entry >= next.length) next = Arrays.copyOf(next, math.max(entry + 1, next.length * 2))
    if (chains * 2 >= heads.length) grow()
    val hash = map.keyWord(entry, KeyCodec.StateBytes)
    val slot = slotOf(heads, hash)
    if (heads(slot) == 0) chains += 1
    next(entry) = heads(slot).toInt - 1
    heads(slot) = head(hash, entry)
  }

  override def range(lower: Array[Byte], upper: Array[Byte]): Array[Int] = {
    var entry = heads(slotOf(heads, hashIn(lower))).toInt - 1
    val found = mutable.ArrayBuilder.make[Long]
    while (entry >= 0) {
      if (startsWith(entry, lower)) found += EntrySort.word(map, entry, KeyCodec.HashedHead)
      entry = next(entry)
    }
    EntrySort.sort(map, found.result(), KeyCodec.HashedHead)
  }

  private def startsWith(entry: Int, prefix: Array[Byte]): Boolean = map.keyLength(entry) >= prefix.length && {
    val at = map.keyOffset(entry)
    Arrays.equals(map.keySlab(entry), at, at + prefix.length, prefix, 0, prefix.length)
  }

  private def grow(): Unit = {
    val wider = new Array[Long](heads.length * 2)
    heads.foreach(chain => if (chain != 0) wider(slotOf(wider, (chain >>> 32).toInt)) = chain)
    heads = wider
  }
}

private object HashIndex {
  private def head(hash: Int, entry: Int): Long = (hash.toLong << 32) | (entry + 1)

  private def slotOf(heads: Array[Long], hash: Int): Int = {
    var slot = hash & (heads.length - 1)
    while (heads(slot) != 0 && (heads(slot) >>> 32).toInt != hash) slot = (slot + 1) & (heads.length - 1)
    slot
  }

  private def hashIn(key: Array[Byte]): Int = {
    val at = KeyCodec.StateBytes
    (key(at) << 24) | ((key(at + 1) & 0xff) << 16) | ((key(at + 2) & 0xff) << 8) | (key(at + 3) & 0xff)
  }
}
