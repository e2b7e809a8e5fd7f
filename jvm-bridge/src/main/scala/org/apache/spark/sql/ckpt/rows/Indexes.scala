package org.apache.spark.sql.ckpt.rows

import java.util.Arrays

import scala.collection.mutable

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.minor.codec.Bytes

/** The entries of one hashed state by prefix: chains by hash, which every prefix has.
  *
  * Entries without a value that this epoch has not written are removed when they are met: their keys do not exist.
  */
private[ckpt] final class HashIndex(map: ByteMap) {
  import HashIndex._

  private var heads = new Array[Long](64) // hash in the high half, the chain's first link in the low; 0 = free
  private var chains = 0
  private var links = new Array[Int](64) // by entry: 0 = in no chain, End, or the next entry + 1

  /** Adds an entry, if it is missing. */
  def add(entry: Int): Unit = {
    if (entry >= links.length) links = Arrays.copyOf(links, math.max(entry + 1, links.length * 2))
    if (links(entry) == 0) {
      if (chains * 2 >= heads.length) grow()
      val hash = map.keyWord(entry, KeyCodec.StateBytes)
      val slot = slotOf(heads, hash)
      if (heads(slot) == 0) chains += 1
      links(entry) = if (heads(slot) == 0) End else heads(slot).toInt
      heads(slot) = head(hash, entry + 1)
    }
  }

  /** Entries whose keys begin with `prefix`, in key order; null if more than `most` have its hash. */
  def under(prefix: Array[Byte], most: Int): Array[Int] = {
    val hash = hashIn(prefix)
    val slot = slotOf(heads, hash)
    val found = mutable.ArrayBuilder.make[Long]
    var before = -1
    var seen = 0
    var link = if (heads(slot) == 0) End else heads(slot).toInt
    while (link != End) {
      seen += 1
      if (seen > most) return null
      val entry = link - 1
      val next = links(entry)
      if (!map.hasValue(entry) && !map.isWritten(entry)) {
        links(entry) = 0
        if (before < 0) heads(slot) = head(hash, next) else links(before) = next
      } else {
        if (startsWith(entry, prefix)) found += EntrySort.word(map, entry, KeyCodec.HashedHead)
        before = entry
      }
      link = next
    }
    EntrySort.sort(map, found.result(), KeyCodec.HashedHead)
  }

  private def startsWith(entry: Int, prefix: Array[Byte]): Boolean = map.keyLength(entry) >= prefix.length && {
    val at = map.keyOffset(entry)
    Bytes.areEqual(map.keySlab(entry), at, at + prefix.length, prefix, 0, prefix.length)
  }

  private def grow(): Unit = {
    val wider = new Array[Long](heads.length * 2)
    heads.foreach(chain => if (chain != 0) wider(slotOf(wider, (chain >>> 32).toInt)) = chain)
    heads = wider
  }
}

private object HashIndex {
  private final val End = -1

  private def head(hash: Int, link: Int): Long = (hash.toLong << 32) | (link & 0xffffffffL)

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
