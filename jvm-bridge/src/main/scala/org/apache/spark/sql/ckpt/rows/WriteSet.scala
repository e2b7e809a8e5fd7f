package org.apache.spark.sql.ckpt
package rows

import java.nio.file.Path

import scala.collection.mutable

import org.rocksdb.{Options => RocksOptions}

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.server.MemoryBudget

/** The rows that one transaction has in memory: what it has written, over what it and its predecessors have read.
  *
  * An entry that was written says whether the base version had its key, so that row counts are exact with no read per
  * write. When all of it outgrows the budgets of near cache and write set, entries that were not used lately are
  * forgotten; when the present values of what was written alone do, they are spilled as one sorted run. Both make entry
  * numbers void. A scan shows what was there when it began. Not thread-safe.
  *
  * `lent`: the rows of the near cache, or null, in which case little of what is read is kept.
  */
private[ckpt] final class WriteSet(lent: ByteMap, staging: Path, runOptions: RocksOptions, budget: MemoryBudget) {
  import WriteSet._

  private var entries = if (lent == null) new ByteMap else lent
  private val byState = mutable.TreeMap.empty[Int, SortedEntries]
  private var lastState = NoState
  private var lastEntries: SortedEntries = _
  private val spilled = new Runs(staging, runOptions)
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

  /** How many files of them are open. */
  def openRuns: Int = spilled.length
  def isEmpty: Boolean = spilled.isEmpty && byState.isEmpty

  /** Whether what is read stays in memory for the next transaction. */
  def keepsReads: Boolean = lent != null

  /** About the bytes of what was written. */
  def bytes: Long = written

  /** Bytes of everything that is in memory. */
  def heapBytes: Long = entries.bytes

  /** The entry of a key that is in memory or was spilled, or -1. */
  def find(key: Array[Byte], length: Int, hash: Int): Int = {
    val entry = entries.find(key, length, hash)
    if (entry >= 0) {
      entries.used(entry)
      entry
    } else if (spilled.isEmpty) {
      -1
    } else {
      recall(key, length, hash)
    }
  }

  /** Keeps a row of the base version; `value` is null where there is none. */
  def remember(key: Array[Byte], length: Int, hash: Int, value: Array[Byte], valueLength: Int): Int = {
    val entry = entries.insert(key, length, hash)
    if (value != null) entries.put(entry, value, 0, valueLength)
    entry
  }

  /** An entry to be written for a key that `find` has just not found; `inBase`: whether the base version has it. */
  def insert(key: Array[Byte], length: Int, hash: Int, inBase: Boolean): Int = {
    val entry = entries.insert(key, length, hash)
    note(entry, inBase)
    entry
  }

  def put(entry: Int, base: AnyRef, offset: Long, length: Int): Unit = {
    touch(entry)
    val before = entries.entryBytes(entry)
    entries.put(entry, base, offset, length)
    count(entry, before)
    keepToBudget()
  }

  /** Adds `length` bytes to the end of the value, or to none. */
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

  /** Deletes the row of a key that the base version, or a spilled run, has; nothing, if memory has it as written. */
  def deleteBelow(key: Array[Byte], wasThere: Boolean): Unit = {
    val hash = ByteMap.hash(key, key.length)
    val known = entries.find(key, key.length, hash)
    if (known < 0) delete(insert(key, key.length, hash, wasThere))
    else if (!entries.isWritten(known)) delete(known)
  }

  /** Spills or forgets what is too much; entry numbers are void after it. */
  def keepToBudget(): Unit = if (written > nextLook || entries.bytes > roof) {
    val room = cacheBytes + budget.bytesPerWriteSet
    // Forgetting what was read is cheaper than spilling what was written. A quarter is for the free room of tables. A
    // value that has outgrown all this is in memory whenever it is used: to spill it each time would help nobody.
    if (!sealedForGood && written > math.max(room - room / 4, 2 * largest)) {
      spill()
    } else if (roof > 0 && entries.bytes > roof) {
      shrink(cacheBytes / 2)
      shrunkTo = entries.bytes
    }
    nextLook = written + Step
    // What a shrink could not but keep must not make the next row shrink again.
    roof = math.max(room, shrunkTo + cacheBytes / 4)
  }

  /** After the commit nothing is spilled any more: the staging folder is gone. */
  def seal(): Unit = sealedForGood = true

  /** Cursors over the written rows in [lower, upper), newest first. `whole`: the range is one state. */
  def cursors(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Seq[Cursor] =
    inMemory(state, lower, upper, whole).toSeq ++ spilled.cursors(lower, upper)

  /** Cursors over what was spilled of [lower, upper), newest first. */
  def spilledCursors(lower: Array[Byte], upper: Array[Byte]): Seq[Cursor] = spilled.cursors(lower, upper)

  private def inMemory(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Option[Cursor] =
    byState.get(state).flatMap { sorted =>
      val few = if (whole || KeyCodec.isOrdered(state)) null else entries.underPrefix(state, lower, MaxByHash)
      if (few != null) {
        val found = few.filter(entries.isWritten)
        Option.when(found.nonEmpty)(new MemoryCursor(entries, found))
      } else {
        val ranges = sorted.ranges(lower, upper)
        Option.when(ranges.nonEmpty)(new MapCursor(entries, ranges))
      }
    }

  /** Everything written, in key order, each key once, newest first. */
  def sealing(): MergedCursor = {
    val words = states.map(byState(_).all).toArray.flatten
    // None is in memory if the last write was the one that made all spill.
    val inMemory =
      Option.when(words.nonEmpty)(new MapCursor(entries, Array(new SortedEntries.Range(words, 0, words.length))))
    new MergedCursor((inMemory ++ spilled.cursors(Array.emptyByteArray, null)).toArray, _ => ())
  }

  /** The states that have written entries, in their order. */
  def states: Iterator[Int] = byState.keysIterator

  /** The written entries of a state, in key order. */
  def writtenOf(state: Int): Array[Int] =
    byState.get(state).fold(Array.emptyIntArray)(sorted => EntrySort.entries(sorted.all))

  /** Ends the transaction. The rows in memory, no more than a near cache may hold. */
  def close(): ByteMap = {
    entries.beginEpoch()
    if (entries.bytes > cacheBytes) shrink(cacheBytes / 2)
    spilled.close()
    budget.writeSetClosed()
    entries
  }

  private def cacheBytes: Long = if (lent == null) MinCache else budget.bytesPerCache

  private def touch(entry: Int): Unit = if (!entries.isWritten(entry)) note(entry, entries.hasValue(entry))

  /** Notes that an entry is written from now on. */
  private def note(entry: Int, inBase: Boolean): Unit = {
    entries.markWritten(entry, inBase)
    list(entry)
    written += entries.entryBytes(entry)
  }

  /** Counts what a write has changed: replaced values take no room that a spill or a copy would keep. */
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
      val entry = insert(key, length, hash, Run.wasThere(record))
      if (!Run.deleted(record)) {
        val before = entries.entryBytes(entry)
        entries.put(entry, record, Run.HeadBytes, record.length - Run.HeadBytes)
        count(entry, before)
      }
      entry
    }
  }

  private def spill(): Unit = {
    spilled.spill(entries, states.flatMap(writtenOf).toArray)
    // Scans that have begun keep the former map; everybody else starts anew.
    startOver(new ByteMap(entries.epoch))
    written = 0
    shrunkTo = 0
  }

  /** Forgets unwritten entries, the least recently used first, until those that stay take at most `limit` bytes. */
  private def shrink(limit: Long): Unit = {
    val before = entries
    val younger = bytesByAge.scanLeft(0L)(_ + _).takeWhile(_ <= limit)
    // Entries of all ages below this one fit, and of this one as many as there is room for.
    val partly = younger.length - 1
    var left = limit - younger.last
    startOver(new ByteMap(before.epoch))
    var entry = 0
    while (entry < before.size) {
      val isMark = before.keyState(entry) == KnownPrefixes.MarkState // not all of the prefix need be there any more
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
  private final val MinCache = 1L << 20

  /** A prefix with more rows than this is found by their order. */
  private final val MaxByHash = 128
}
