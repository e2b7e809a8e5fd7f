package org.apache.spark.sql.ckpt.rows

import java.util.Arrays

import scala.collection.mutable

import org.apache.spark.sql.ckpt.minor.codec.Bytes
import org.apache.spark.unsafe.Platform

/** Hash map from key bytes to value bytes without an object per entry.
  *
  * Entries are numbered from 0 in order of insertion and never move, so a number stays valid while the map grows. A key
  * may be known to have no value. Replacing a value appends the new bytes, and the old ones stay readable for existing
  * references, unless the caller knows that there are none. A look-up touches few places: one slot of the table, one
  * record, the key. Not thread-safe.
  *
  * Every entry has the stamp of the epoch that used it last, and whether this epoch wrote it. A scan reads values as of
  * a `Snapshot`, which remembers values that are replaced while it is open.
  *
  * `expected`: how many entries there is room for at once.
  */
private[ckpt] final class ByteMap(private var currentEpoch: Int = 0, expected: Int = 0) {
  import ByteMap._

  private val arena = new Arena
  // Hash in the high half, entry number + 1 in the low; 0 = free.
  private var table = new Array[Long](capacityFor(expected) * 2)
  private var records = new Array[Long](wordsFor(capacityFor(expected)))
  private var count = 0
  private val indexes = mutable.HashMap.empty[Int, HashIndex]
  private val replaced = new ReplacedValues
  private val rooms = mutable.HashMap.empty[Int, Int] // by entry: bytes reserved for an extended value
  private val orders = mutable.HashMap.empty[Int, SortedEntries]
  private var present = 0
  private var presentBytes = 0L
  private var indexBytes = 0L

  /** Whether this map has all rows of the version that it shows: a key that is missing does not exist. */
  var isComplete = false

  def size: Int = count

  /** Bytes on the heap: slabs, records, the table, indexes, and what is known of values that grow. */
  def bytes: Long = arena.bytes + (records.length + table.length) * 8L + indexBytes + rooms.size * RoomBytes

  /** Bytes that a copy without replaced values and without keys that have no value would not need. */
  def garbageBytes: Long = arena.bytes - presentBytes + (count - present) * EntryBytes.toLong

  /** The entry of `key`, or -1. */
  def find(key: Array[Byte], length: Int, hash: Int): Int = {
    val mask = table.length - 1
    var slot = hash & mask
    var occupant = table(slot)
    while (occupant != 0) {
      if ((occupant >>> 32).toInt == hash) {
        val entry = occupant.toInt - 1
        if (keyLength(entry) == length) {
          val at = keyOffset(entry)
          if (Bytes.areEqual(keySlab(entry), at, at + length, key, 0, length)) return entry
        }
      }
      slot = (slot + 1) & mask
      occupant = table(slot)
    }
    -1
  }

  /** Adds an entry without a value, for a key that `find` has just missed. */
  def insert(key: Array[Byte], length: Int, hash: Int): Int = insert(key, 0, length, hash)

  def insert(key: Array[Byte], from: Int, length: Int, hash: Int): Int = {
    if (count * RecordWords == records.length) grow()
    val entry = count
    val record = entry * RecordWords
    records(record + Key) = arena.append(key, from, length)
    records(record + Lengths) = pack(length, Absent)
    records(record + Stamps) = pack(hash, stamp(0))
    count += 1
    link(hash, entry)
    if (indexes.nonEmpty) {
      index(entry)
      indexBytes += IndexEntryBytes
    }
    if (orders.nonEmpty) orders.get(keyState(entry)).foreach(addTo(_, entry))
    entry
  }

  def put(entry: Int, value: Array[Byte], from: Int, length: Int): Unit =
    point(entry, arena.append(value, from, length), length)

  /** Puts `length` bytes of any `base` object that `Platform` can read (an UnsafeRow's bytes, on or off heap).
    * `overwrites`: nobody refers to the bytes of the old value, so the new ones may take their place.
    */
  def put(entry: Int, base: AnyRef, offset: Long, length: Int, overwrites: Boolean): Unit = {
    val isSameSize = overwrites && length == valueLength(entry) && !replaced.isWatched && roomOf(entry) == 0
    val location = if (isSameSize) records(entry * RecordWords + Value) else arena.reserve(length)
    Platform.copyMemory(base, offset, arena.slab(location), Platform.BYTE_ARRAY_OFFSET + location.toInt, length)
    if (!isSameSize) point(entry, location, length)
  }

  /** Adds bytes to the end of a value. A value that grows step by step is copied only when its size has doubled. Bytes
    * that are already referenced do not change.
    */
  def extend(entry: Int, bytes: Array[Byte], length: Int): Unit = {
    val before = math.max(0, valueLength(entry))
    val after = Math.addExact(before, length)
    if (roomOf(entry) < after) {
      putWithRoom(entry, after * 2L, if (before > 0) valueSlab(entry) else null, valueOffset(entry), before)
    }
    val location = records(entry * RecordWords + Value)
    System.arraycopy(bytes, 0, arena.slab(location), location.toInt + before, length)
    describe(entry, location, after)
  }

  /** Puts a value at a place where it can be extended. */
  private def putWithRoom(entry: Int, wanted: Long, value: Array[Byte], from: Int, length: Int): Unit = {
    val room = math.max(length, math.min(wanted, MaxRoom)).toInt
    val location = arena.reserve(room)
    if (length > 0) System.arraycopy(value, from, arena.slab(location), location.toInt, length)
    describe(entry, location, length)
    rooms(entry) = room
  }

  private def roomOf(entry: Int): Int = if (rooms.isEmpty) 0 else rooms.getOrElse(entry, 0)

  /** Records that the key of `entry` has no value. */
  def delete(entry: Int): Unit = point(entry, 0, Absent)

  private def point(entry: Int, location: Long, length: Int): Unit = {
    if (rooms.nonEmpty) rooms.remove(entry)
    describe(entry, location, length)
  }

  private def describe(entry: Int, location: Long, length: Int): Unit = {
    val record = entry * RecordWords
    val before = valueLength(entry)
    if (replaced.isWatched) replaced.add(entry, records(record + Value), before)
    if (before >= 0) count(-1, keyLength(entry) + before)
    if (length >= 0) count(1, keyLength(entry) + length)
    records(record + Value) = location
    records(record + Lengths) = pack(keyLength(entry), length)
  }

  private def count(rows: Int, bytes: Int): Unit = {
    present += rows
    presentBytes += rows * bytes.toLong
  }

  /** A snapshot of the present values, which the caller closes. */
  def snapshot(): Snapshot = new Snapshot(replaced.open(count))

  /** The entries and values at the time of the snapshot. `at` selects an entry. */
  final class Snapshot(number: Int) {
    private var location = 0L
    private var length = Absent
    private var isOpen = true

    def at(entry: Int): Unit = {
      val old = replaced.of(entry, number)
      location = if (old == null) records(entry * RecordWords + Value) else old.location
      length = if (old == null) ByteMap.this.valueLength(entry) else old.length
    }

    def hasValue: Boolean = length >= 0
    def valueLength: Int = length
    def valueOffset: Int = location.toInt
    def valueSlab: Array[Byte] = arena.slab(location)

    def close(): Unit = if (isOpen) {
      isOpen = false
      replaced.close()
    }
  }

  def hasValue(entry: Int): Boolean = valueLength(entry) >= 0

  def hash(entry: Int): Int = (records(entry * RecordWords + Stamps) >>> 32).toInt
  def keyLength(entry: Int): Int = (records(entry * RecordWords + Lengths) >>> 32).toInt
  def keySlab(entry: Int): Array[Byte] = arena.slab(records(entry * RecordWords + Key))
  def keyOffset(entry: Int): Int = records(entry * RecordWords + Key).toInt
  def valueLength(entry: Int): Int = records(entry * RecordWords + Lengths).toInt
  def valueSlab(entry: Int): Array[Byte] = arena.slab(records(entry * RecordWords + Value))
  def valueOffset(entry: Int): Int = records(entry * RecordWords + Value).toInt

  def key(entry: Int): Array[Byte] = copy(keySlab(entry), keyOffset(entry), keyLength(entry))
  def value(entry: Int): Array[Byte] = copy(valueSlab(entry), valueOffset(entry), valueLength(entry))

  /** Bytes that a copy of this entry takes, without the free room of table and records. */
  def entryBytes(entry: Int): Int = EntryBytes + keyLength(entry) + math.max(roomOf(entry), valueLength(entry))

  // ---- epochs ---------------------------------------------------------------------------------------------------

  /** Begins a new epoch, in which nothing is written yet. */
  def beginEpoch(): Unit = currentEpoch = (currentEpoch + 1) & EpochMask

  def epoch: Int = currentEpoch

  /** How many epochs ago the entry was used. */
  def age(entry: Int): Int = (currentEpoch - (stampOf(entry) >>> StampBits)) & EpochMask

  /** Whether this epoch wrote the entry. */
  def isWritten(entry: Int): Boolean = (stampOf(entry) ^ stamp(Written)) >>> 1 == 0

  /** Whether the key had a value before this epoch; valid for written entries only. */
  def wasThere(entry: Int): Boolean = (stampOf(entry) & WasThere) != 0

  /** Whether the key of an entry that has a value had one before this epoch, too, or did if it has none now. */
  def wasInBase(entry: Int): Boolean = !isWritten(entry) || wasThere(entry)

  /** Marks an entry as used by this epoch. */
  def used(entry: Int): Unit = if (stampOf(entry) >>> StampBits != currentEpoch) setStamp(entry, stamp(0))

  /** Marks an entry as written by this epoch. */
  def markWritten(entry: Int, wasThere: Boolean): Unit =
    setStamp(entry, stamp(Written | (if (wasThere) WasThere else 0)))

  /** Copies an entry of another map of the same epoch, for a key that this map does not have. */
  def copyFrom(other: ByteMap, theirs: Int): Int = {
    val entry = insert(other.keySlab(theirs), other.keyOffset(theirs), other.keyLength(theirs), other.hash(theirs))
    if (other.hasValue(theirs)) {
      val (value, from, length) = (other.valueSlab(theirs), other.valueOffset(theirs), other.valueLength(theirs))
      // Without its room, the next extension would copy a growing value as a whole.
      val room = if (other.isWritten(theirs)) other.roomOf(theirs) else 0
      if (room > 0) putWithRoom(entry, room, value, from, length) else put(entry, value, from, length)
    }
    setStamp(entry, other.stampOf(theirs))
    entry
  }

  private def stamp(bits: Int): Int = (currentEpoch << StampBits) | bits
  private def stampOf(entry: Int): Int = records(entry * RecordWords + Stamps).toInt
  private def setStamp(entry: Int, stamp: Int): Unit = {
    val at = entry * RecordWords + Stamps
    records(at) = (records(at) & 0xffffffff00000000L) | (stamp & 0xffffffffL)
  }

  // ---- order ----------------------------------------------------------------------------------------------------

  /** Unsigned order of the key's bytes and `other`. */
  def compareKey(entry: Int, other: Array[Byte]): Int = {
    val at = keyOffset(entry)
    Bytes.compareUnsigned(keySlab(entry), at, at + keyLength(entry), other, 0, other.length)
  }

  /** How many bytes from `depth` on two keys have in common; both have at least `depth` bytes. */
  def commonBytes(left: Int, right: Int, depth: Int): Int = {
    val (l, r) = (keyOffset(left), keyOffset(right))
    val first = Bytes.mismatch(
      keySlab(left), l + depth, l + keyLength(left), keySlab(right), r + depth, r + keyLength(right))
    if (first < 0) keyLength(left) - depth else first
  }

  /** Unsigned order of the keys' bytes. */
  def compareKeys(left: Int, right: Int): Int = {
    val (l, r) = (keyOffset(left), keyOffset(right))
    Bytes.compareUnsigned(
      keySlab(left), l, l + keyLength(left), keySlab(right), r, r + keyLength(right))
  }

  /** The number of the state that the key belongs to. */
  def keyState(entry: Int): Int = keyWord(entry, 0) >>> 16

  /** Four bytes of the key from `depth` on as an unsigned number, with zeros after its end. */
  def keyWord(entry: Int, depth: Int): Int = {
    val left = keyLength(entry) - depth
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

  // ---- prefixes -------------------------------------------------------------------------------------------------

  /** The entries of a hashed state whose keys begin with `prefix`, in key order, without known-absent ones that this
    * epoch has not written. Null if more than `most` entries would have to be read. After the first call the map keeps
    * an index of the state.
    */
  def underPrefix(state: Int, prefix: Array[Byte], most: Int = Int.MaxValue): Array[Int] =
    indexes.getOrElseUpdate(state, newIndex(state)).under(prefix, most)

  /** Adds a written entry to the index of its state again. */
  def index(entry: Int): Unit = indexes.get(keyState(entry)).foreach(_.add(entry))

  private def newIndex(state: Int): HashIndex = {
    val made = new HashIndex(this)
    foreachOf(state)(made.add)
    indexBytes += count * IndexEntryBytes
    made
  }

  /** All entries of a state that is kept in order, by their keys. The map keeps the order after the first call. */
  def inOrder(state: Int): SortedEntries = orders.getOrElseUpdate(
    state, {
      val made = new SortedEntries(this)
      foreachOf(state)(addTo(made, _))
      made
    })

  private def addTo(order: SortedEntries, entry: Int): Unit = {
    order.add(entry)
    indexBytes += OrderEntryBytes
  }

  private def foreachOf(state: Int)(work: Int => Unit): Unit = {
    var entry = 0
    while (entry < count) {
      if (keyState(entry) == state) work(entry)
      entry += 1
    }
  }

  private def copy(slab: Array[Byte], at: Int, length: Int): Array[Byte] =
    Arrays.copyOfRange(slab, at, at + length)

  private def link(hash: Int, entry: Int): Unit = {
    val mask = table.length - 1
    var slot = hash & mask
    while (table(slot) != 0) slot = (slot + 1) & mask
    table(slot) = pack(hash, entry + 1)
  }

  private def grow(): Unit = {
    records = Arrays.copyOf(records, wordsFor(table.length))
    table = new Array[Long](table.length * 2)
    var entry = 0
    while (entry < count) {
      link(hash(entry), entry)
      entry += 1
    }
  }
}

private[ckpt] object ByteMap {
  private final val Absent = -1
  private final val MinCapacity = 32
  private final val MaxExpected = 1 << 26
  private final val MaxRoom = 1L << 30

  // A record has the locations of key and value, both lengths, the hash and the stamp.
  private final val RecordWords = 4
  private final val Key = 0
  private final val Value = 1
  private final val Lengths = 2
  private final val Stamps = 3
  private final val EntryBytes = RecordWords * 8 + 2 * 8
  private final val IndexEntryBytes = 24L
  private final val OrderEntryBytes = 16L
  private final val RoomBytes = 72L // an object of the map, two boxed numbers and a place in its table

  private final val WasThere = 1
  private final val Written = 2
  private final val StampBits = 2
  private final val EpochMask = 0x3fffffff

  private def capacityFor(entries: Int): Int =
    math.max(MinCapacity, Integer.highestOneBit(math.max(1, math.min(entries, MaxExpected) - 1)) * 2)

  /** The words of the records that belong to a table for so many entries: with the header of an array, a power of two,
    * of which a collector that gives whole regions to large arrays wastes nothing.
    */
  private def wordsFor(capacity: Int): Int = (capacity - 1) * RecordWords

  /** The fewest bytes that a map of so many entries takes. */
  def minBytes(entries: Long): Long = entries * EntryBytes

  private def pack(high: Int, low: Int): Long = (high.toLong << 32) | (low & 0xffffffffL)

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
