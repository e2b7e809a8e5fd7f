package org.apache.spark.sql.ckpt

import java.util.Arrays

import org.apache.spark.unsafe.Platform

/** Hash map from key bytes to value bytes with no object per entry.
  *
  * Entries are numbered from 0 in order of insertion and never move, so a number can be kept while the map grows.
  * An entry may have no value yet (`Unwritten`) or a tombstone (`Deleted`). Replacing a value appends the new bytes;
  * the old ones stay readable for whoever still points at them. Not thread-safe.
  */
private[ckpt] final class ByteMap {
  import ByteMap._

  private val arena = new Arena
  private var table = new Array[Int](InitialEntries * 2) // entry number + 1, 0 = free
  private var hashes = new Array[Int](InitialEntries)
  private var keyLocations = new Array[Long](InitialEntries)
  private var keyLengths = new Array[Int](InitialEntries)
  private var valueLocations = new Array[Long](InitialEntries)
  private var valueLengths = new Array[Int](InitialEntries)
  private var marks = new Array[Byte](InitialEntries)
  private var count = 0

  def size: Int = count

  /** Bytes on the heap: slabs, and 29 bytes an entry plus its share of the table. */
  def bytes: Long = arena.bytes + hashes.length.toLong * 29 + table.length.toLong * 4

  /** The entry of `key`, or -1. */
  def find(key: Array[Byte], length: Int, hash: Int): Int = {
    val mask = table.length - 1
    var slot = hash & mask
    while (true) {
      val entry = table(slot) - 1
      if (entry < 0) return -1
      if (hashes(entry) == hash && keyLengths(entry) == length) {
        val location = keyLocations(entry)
        val at = location.toInt
        if (Arrays.equals(arena.slab(location), at, at + length, key, 0, length)) return entry
      }
      slot = (slot + 1) & mask
    }
    -1
  }

  /** Adds an entry with no value for a key that `find` has just not found. */
  def insert(key: Array[Byte], length: Int, hash: Int): Int = {
    if (count == hashes.length) grow()
    val entry = count
    hashes(entry) = hash
    keyLocations(entry) = arena.append(key, 0, length)
    keyLengths(entry) = length
    valueLengths(entry) = Unwritten
    count += 1
    link(entry)
    entry
  }

  def findOrInsert(key: Array[Byte], length: Int, hash: Int): Int = {
    val entry = find(key, length, hash)
    if (entry >= 0) entry else insert(key, length, hash)
  }

  def put(entry: Int, value: Array[Byte], from: Int, length: Int): Unit = {
    valueLocations(entry) = arena.append(value, from, length)
    valueLengths(entry) = length
  }

  /** Puts `length` bytes of any `base` object that `Platform` can read (an UnsafeRow's bytes, on or off heap). */
  def put(entry: Int, base: AnyRef, offset: Long, length: Int): Unit = {
    val location = arena.reserve(length)
    Platform.copyMemory(base, offset, arena.slab(location), Platform.BYTE_ARRAY_OFFSET + location.toInt, length)
    valueLocations(entry) = location
    valueLengths(entry) = length
  }

  def delete(entry: Int): Unit = valueLengths(entry) = Deleted

  def isWritten(entry: Int): Boolean = valueLengths(entry) != Unwritten
  def isDeleted(entry: Int): Boolean = valueLengths(entry) == Deleted
  def hasValue(entry: Int): Boolean = valueLengths(entry) >= 0

  def hash(entry: Int): Int = hashes(entry)
  def keyLength(entry: Int): Int = keyLengths(entry)
  def keySlab(entry: Int): Array[Byte] = arena.slab(keyLocations(entry))
  def keyOffset(entry: Int): Int = keyLocations(entry).toInt
  def valueLength(entry: Int): Int = valueLengths(entry)
  def valueSlab(entry: Int): Array[Byte] = arena.slab(valueLocations(entry))
  def valueOffset(entry: Int): Int = valueLocations(entry).toInt

  def key(entry: Int): Array[Byte] = copy(keySlab(entry), keyOffset(entry), keyLength(entry))
  def value(entry: Int): Array[Byte] = copy(valueSlab(entry), valueOffset(entry), valueLength(entry))

  /** One byte an entry for its owner's use; 0 at first. */
  def mark(entry: Int): Byte = marks(entry)
  def mark(entry: Int, value: Byte): Unit = marks(entry) = value

  /** Unsigned order of the keys' bytes. */
  def compareKeys(left: Int, right: Int): Int = {
    val (l, r) = (keyOffset(left), keyOffset(right))
    Arrays.compareUnsigned(
      keySlab(left), l, l + keyLengths(left), keySlab(right), r, r + keyLengths(right))
  }

  /** Four bytes of the key from `depth` on as an unsigned number, zeros behind its end. */
  def keyWord(entry: Int, depth: Int): Int = {
    val left = keyLengths(entry) - depth
    val slab = keySlab(entry)
    val at = keyOffset(entry) + depth
    if (left >= 4) {
      Integer.reverseBytes(Platform.getInt(slab, Platform.BYTE_ARRAY_OFFSET + at))
    } else {
      var word = 0
      var i = 0
      while (i < 4) {
        word = (word << 8) | (if (i < left) slab(at + i) & 0xff else 0)
        i += 1
      }
      word
    }
  }

  private def copy(slab: Array[Byte], at: Int, length: Int): Array[Byte] =
    Arrays.copyOfRange(slab, at, at + length)

  private def link(entry: Int): Unit = {
    val mask = table.length - 1
    var slot = hashes(entry) & mask
    while (table(slot) != 0) slot = (slot + 1) & mask
    table(slot) = entry + 1
  }

  private def grow(): Unit = {
    val capacity = hashes.length * 2
    hashes = Arrays.copyOf(hashes, capacity)
    keyLocations = Arrays.copyOf(keyLocations, capacity)
    keyLengths = Arrays.copyOf(keyLengths, capacity)
    valueLocations = Arrays.copyOf(valueLocations, capacity)
    valueLengths = Arrays.copyOf(valueLengths, capacity)
    marks = Arrays.copyOf(marks, capacity)
    table = new Array[Int](capacity * 2)
    var entry = 0
    while (entry < count) {
      link(entry)
      entry += 1
    }
  }
}

private[ckpt] object ByteMap {
  final val Unwritten = -2
  final val Deleted = -1
  private final val InitialEntries = 32

  /** A well-spread 32-bit hash of the whole key: keys of one group differ only in their ends. */
  def hash(key: Array[Byte], length: Int): Int = {
    var h = length * 0x9e3779b97f4a7c15L
    var i = 0
    while (i + 8 <= length) {
      h = (h ^ Platform.getLong(key, Platform.BYTE_ARRAY_OFFSET + i)) * 0x9e3779b97f4a7c15L
      h ^= h >>> 29
      i += 8
    }
    while (i < length) {
      h = (h ^ key(i)) * 0x9e3779b97f4a7c15L
      i += 1
    }
    (h ^ (h >>> 32)).toInt
  }
}
