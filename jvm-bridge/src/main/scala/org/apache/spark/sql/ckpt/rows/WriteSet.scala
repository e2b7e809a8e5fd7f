package org.apache.spark.sql.ckpt.rows

import java.nio.file.Path

import scala.collection.mutable

import org.rocksdb.{Options => RocksOptions}

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.settings.MemoryBudget

/** The rows that one transaction has in memory: its writes, on top of rows that it and its predecessors have read.
  *
  * A written entry records whether the base version had its key, so that row counts are exact without a read per write.
  * If the whole outgrows the budgets of near cache and write set, the least recently used unwritten entries are
  * forgotten. If the present values of written entries alone outgrow them, these are spilled as one sorted run. Both
  * invalidate entry numbers. A scan shows the rows at its beginning. Not thread-safe.
  *
  * If the rows are all of the state (`isComplete`), none of them is forgotten or spilled as long as `residence` holds
  * enough memory. If it does not, the store falls back, and the rows become a part of the state like any other.
  *
  * `lent`: the rows of the near cache; null: few of the rows that are read are kept.
  */
private[ckpt] final class WriteSet(
    lent: ByteMap, staging: Path, runOptions: RocksOptions, budget: MemoryBudget, residence: Residence) {
  import WriteSet._

  private var entries = if (lent == null) new ByteMap else lent
  private val byState = mutable.TreeMap.empty[Int, SortedEntries]
  private var lastState = NoState
  private var lastEntries: SortedEntries = _
  private val spilled = new SortedRuns(staging, runOptions)
  private var written = 0L
  private var largest = 0L
  private var roof = 0L
  private var shrunkTo = 0L
  private var nextLook = 0L
  private var sealedForGood = false

  budget.writeSetOpened()
  entries.beginEpoch()

  def map: ByteMap = entries

  /** How many runs were spilled. */
  def runs: Int = spilled.spilled

  /** How many files of runs are open. */
  def openRuns: Int = spilled.length
  def isEmpty: Boolean = spilled.isEmpty && byState.isEmpty

  /** Whether rows that are read stay in memory for the next transaction. */
  def keepsReads: Boolean = lent != null

  /** Whether all rows of the state are in memory. */
  def isComplete: Boolean = entries.isComplete

  /** Whether all rows of the state can be taken into memory now. */
  def canComplete: Boolean = keepsReads && spilled.isEmpty && residence.isOn

  /** Makes room for all rows of the base version, about `rows` of them; false if the store falls back instead. */
  def expectAll(rows: Long): Boolean = {
    val bytes = entries.bytes + ByteMap.minBytes(rows)
    val isHeld = residence.hold(bytes)
    if (isHeld) {
      if (entries.size == 0) startOver(new ByteMap(entries.epoch, math.min(rows, Int.MaxValue).toInt))
      entries.isComplete = true
    } else {
      residence.fallBack(bytes)
    }
    isHeld
  }

  /** Records that all rows of the base version are in memory, or that they are not. */
  def complete(isComplete: Boolean): Unit = entries.isComplete = isComplete

  /** The approximate bytes of written entries. */
  def bytes: Long = written

  /** Bytes of everything that is in memory. */
  def heapBytes: Long = entries.bytes

  /** The entry of a key that is in memory or was spilled, or -1. */
  def find(key: Array[Byte], length: Int, hash: Int): Int = {
    val entry = entries.find(key, length, hash)
    if (entry >= 0) {
      if (!entries.isComplete) entries.used(entry) // else none is forgotten, and a stamp would cost a write to memory
      entry
    } else if (spilled.isEmpty) {
      -1
    } else {
      recall(key, length, hash)
    }
  }

  /** Keeps a row of the base version; `value` is null if there is none. */
  def remember(key: Array[Byte], length: Int, hash: Int, value: Array[Byte], valueLength: Int): Int = {
    val entry = entries.insert(key, length, hash)
    if (value != null) entries.put(entry, value, 0, valueLength)
    entry
  }

  /** Adds a written entry for a key that `find` has just missed; `inBase`: whether the base version has it. */
  def insert(key: Array[Byte], length: Int, hash: Int, inBase: Boolean): Int = {
    val entry = entries.insert(key, length, hash)
    note(entry, inBase)
    entry
  }

  /** Puts a value; `overwrites` as in `ByteMap.put`. */
  def put(entry: Int, base: AnyRef, offset: Long, length: Int, overwrites: Boolean): Unit = {
    touch(entry)
    val before = entries.entryBytes(entry)
    entries.put(entry, base, offset, length, overwrites)
    count(entry, before)
    keepToBudget()
  }

  /** Adds `length` bytes to the end of the value, which may be absent. */
  def extend(entry: Int, bytes: Array[Byte], length: Int): Unit = {
    touch(entry)
    val before = entries.entryBytes(entry)
    entries.extend(entry, bytes, length)
    count(entry, before)
    keepToBudget()
  }

  def delete(entry: Int): Unit = {
    touch(entry)
    val before = entries.entryBytes(entry)
    entries.delete(entry)
    count(entry, before)
    keepToBudget()
  }

  /** Deletes the written rows in [lower, upper) that are in memory. */
  def deleteWritten(state: Int, lower: Array[Byte], upper: Array[Byte]): Unit =
    byState.get(state).foreach(_.ranges(lower, upper).foreach { range =>
      var i = range.from
      while (i < range.until) {
        val entry = range.run(i).toInt
        if (entries.hasValue(entry)) {
          val before = entries.entryBytes(entry)
          entries.delete(entry)
          count(entry, before)
        }
        i += 1
      }
    })

  /** Deletes the row of a key in the base version or a spilled run; does nothing if it is a written row in memory. */
  def deleteBelow(key: Array[Byte], wasThere: Boolean): Unit = {
    val hash = ByteMap.hash(key, key.length)
    val known = entries.find(key, key.length, hash)
    if (known < 0) delete(insert(key, key.length, hash, wasThere))
    else if (!entries.isWritten(known)) delete(known)
  }

  /** Spills or forgets rows beyond the budget, which invalidates entry numbers. */
  def keepToBudget(): Unit =
    if (!entries.isComplete) keepPart() else if (entries.bytes > residence.held && !holdAll()) keepPart()

  /** Makes room for all rows; false if the store falls back instead, and may keep only a part of them. */
  private def holdAll(): Boolean = {
    val bytes = entries.bytes
    val isHeld = residence.hold(bytes + bytes / 8) || {
      if (entries.garbageBytes > bytes / 8) compact()
      residence.hold(entries.bytes)
    }
    if (!isHeld) {
      entries.isComplete = false
      residence.fallBack(bytes)
    }
    isHeld
  }

  /** Leaves out replaced values, and keys that have no value. */
  private def compact(): Unit = {
    val before = entries
    startOver(new ByteMap(before.epoch, before.size))
    entries.isComplete = true
    var entry = 0
    while (entry < before.size) {
      if (before.isWritten(entry)) list(entries.copyFrom(before, entry))
      else if (before.hasValue(entry)) entries.copyFrom(before, entry)
      entry += 1
    }
  }

  private def keepPart(): Unit = if (written > nextLook || entries.bytes > roof) {
    val room = cacheBytes + budget.bytesPerWriteSet
    // Forgetting read rows is cheaper than spilling written ones. A quarter is for the free room of tables. A value
    // that has outgrown all this is in memory whenever it is used, so spilling it each time would not help.
    if (!sealedForGood && written > math.max(room - room / 4, 2 * largest)) {
      spill()
    } else if (roof > 0 && entries.bytes > roof) {
      shrink(cacheBytes / 2)
      shrunkTo = entries.bytes
    }
    nextLook = written + Step
    // The rows that a shrink had to keep must not make the next row shrink again.
    roof = math.max(room, shrunkTo + cacheBytes / 4)
  }

  /** Stops spilling after the commit, because the staging folder is gone. */
  def seal(): Unit = sealedForGood = true

  /** Cursors over the written rows in [lower, upper), newest first. `whole`: the range is one state. */
  def cursors(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Seq[Cursor] =
    inMemory(state, lower, upper, whole).toSeq ++ spilled.cursors(lower, upper)

  /** The rows in [lower, upper) of a complete state. The caller closes the cursor, which calls `onClose` then. */
  def allRows(
      state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean, onClose: Cursor => Unit): Cursor =
    if (KeyCodec.isOrdered(state)) new MapCursor(entries, entries.inOrder(state).ranges(lower, upper), onClose)
    else if (whole) new StateCursor(entries, state, onClose)
    else new MemoryCursor(entries, entries.underPrefix(state, lower), onClose)

  /** Cursors over the spilled rows in [lower, upper), newest first. */
  def spilledCursors(lower: Array[Byte], upper: Array[Byte]): Seq[Cursor] = spilled.cursors(lower, upper)

  private def inMemory(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Option[Cursor] =
    byState.get(state).flatMap { sorted =>
      val few = if (whole || KeyCodec.isOrdered(state)) null else entries.underPrefix(state, lower, MaxByHash)
      if (few != null) {
        val found = few.filter(entries.isWritten)
        if (found.isEmpty) None else Some(new MemoryCursor(entries, found))
      } else {
        val ranges = sorted.ranges(lower, upper)
        if (ranges.isEmpty) None else Some(new MapCursor(entries, ranges))
      }
    }

  /** Everything written, in key order, each key once, newest first. */
  def sealing(): MergedCursor = {
    val words = states.map(byState(_).all).toArray.flatten
    // No row is in memory if the last write made all of them spill.
    val inMemory =
      if (words.isEmpty) None else Some(new MapCursor(entries, Array(new SortedEntries.Range(words, 0, words.length))))
    new MergedCursor((inMemory ++ spilled.cursors(Array.emptyByteArray, null)).toArray, _ => ())
  }

  /** The numbers of states with written entries, in ascending order. */
  def states: Iterator[Int] = byState.keysIterator

  /** The written entries of a state, in key order. */
  def writtenOf(state: Int): Array[Int] =
    byState.get(state).fold(Array.emptyIntArray)(sorted => EntrySort.entries(sorted.all))

  /** Ends the transaction; returns the rows in memory, at most as many as a near cache may hold. */
  def close(): ByteMap = {
    entries.beginEpoch()
    if (entries.isComplete && entries.garbageBytes > entries.bytes / 2) {
      byState.clear()
      compact()
    }
    if (keepsReads && !(entries.isComplete && (residence.hold(entries.bytes) || holdAll()))) residence.clear()
    if (!entries.isComplete && entries.bytes > cacheBytes) shrink(cacheBytes / 2)
    spilled.close()
    budget.writeSetClosed()
    entries
  }

  private def cacheBytes: Long = if (lent == null) budget.minCacheBytes else budget.bytesPerCache

  private def touch(entry: Int): Unit = if (!entries.isWritten(entry)) note(entry, entries.hasValue(entry))

  /** Marks an entry as written. */
  private def note(entry: Int, inBase: Boolean): Unit = {
    entries.markWritten(entry, inBase)
    list(entry)
    written += entries.entryBytes(entry)
  }

  /** Counts the bytes that a write has changed, without replaced values, which a spill or a copy would not keep. */
  private def count(entry: Int, before: Int): Unit = {
    val after = entries.entryBytes(entry)
    written += after - before
    if (after > largest) largest = after
  }

  private def list(entry: Int): Unit = {
    val state = entries.keyState(entry)
    if (state != lastState) {
      lastState = state
      lastEntries = byState.getOrElseUpdate(state, new SortedEntries(entries))
    }
    lastEntries.add(entry)
    if (!KeyCodec.isOrdered(state)) entries.index(entry)
  }

  private def recall(key: Array[Byte], length: Int, hash: Int): Int = {
    val record = spilled.find(key, length, hash)
    if (record == null) {
      -1
    } else {
      val entry = insert(key, length, hash, SortedRun.wasThere(record))
      if (!SortedRun.deleted(record)) {
        val before = entries.entryBytes(entry)
        entries.put(entry, record, SortedRun.HeadBytes, record.length - SortedRun.HeadBytes)
        count(entry, before)
      }
      entry
    }
  }

  private def spill(): Unit = {
    spilled.spill(entries, states.flatMap(writtenOf).toArray)
    // Open scans keep the former map; everything else uses a new one.
    startOver(new ByteMap(entries.epoch))
    written = 0
    shrunkTo = 0
  }

  /** Forgets unwritten entries, the least recently used first, until the others take at most `limit` bytes. */
  private def shrink(limit: Long): Unit = {
    val before = entries
    val younger = bytesByAge.scanLeft(0L)(_ + _).takeWhile(_ <= limit)
    // All younger entries fit, and as many of this age as there is room for.
    val partly = younger.length - 1
    var left = limit - younger.last
    startOver(new ByteMap(before.epoch))
    var entry = 0
    while (entry < before.size) {
      val isMark = before.keyState(entry) == KnownPrefixes.MarkState // some rows of its prefix may be gone
      if (before.isWritten(entry)) {
        list(entries.copyFrom(before, entry))
      } else if (!isMark) {
        val age = math.min(before.age(entry), Ages - 1)
        if (age == partly) left -= before.entryBytes(entry)
        if (age < partly || age == partly && left >= 0) entries.copyFrom(before, entry)
      }
      entry += 1
    }
  }

  /** Bytes of the unwritten entries, by the number of epochs since their last use. */
  private def bytesByAge: Array[Long] = {
    val bytes = new Array[Long](Ages)
    var entry = 0
    while (entry < entries.size) {
      if (!entries.isWritten(entry)) bytes(math.min(entries.age(entry), Ages - 1)) += entries.entryBytes(entry)
      entry += 1
    }
    bytes
  }

  private def startOver(fresh: ByteMap): Unit = {
    entries = fresh
    byState.clear()
    lastState = NoState
  }
}

private[ckpt] object WriteSet {
  private final val NoState = -1
  private final val Ages = 64
  private final val Step = 64L << 10

  /** The rows of a larger prefix are found by their order. */
  private final val MaxByHash = 128
}
