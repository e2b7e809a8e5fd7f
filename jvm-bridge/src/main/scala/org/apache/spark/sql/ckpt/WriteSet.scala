package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path}
import java.util.Arrays

import scala.collection.mutable

import org.rocksdb.{Options => RocksOptions}

/** The rows that one transaction has in memory: what it has written, over what it and its predecessors have read.
  *
  * An entry that was written says whether the base version had its key, so that row counts are exact with no read per
  * write. When all of it outgrows the budgets of near cache and write set, entries that were not used lately are
  * forgotten; when the writes alone do, they are spilled as one sorted run. Both make entry numbers void. Not
  * thread-safe.
  *
  * `lent`: the rows of the near cache, or null, in which case little of what is read is kept.
  */
private[ckpt] final class WriteSet(lent: ByteMap, staging: Path, runOptions: RocksOptions, budget: MemoryBudget) {
  import WriteSet._

  private var entries = if (lent == null) new ByteMap else lent
  private val byState = mutable.TreeMap.empty[Int, Entries]
  private var lastState = NoState
  private var lastEntries: Entries = _
  private val spilled = mutable.ArrayBuffer.empty[Run]
  private val indexes = mutable.HashMap.empty[Int, OrderedIndex]
  private var written = 0L
  private var roof = 0L
  private var shrunkTo = 0L
  private var nextLook = 0L
  private var sealedForGood = false

  budget.writeSetOpened()
  entries.beginEpoch()

  def map: ByteMap = entries
  def runs: Int = spilled.length
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
    entries.put(entry, base, offset, length)
    written += length
    keepToBudget()
  }

  def delete(entry: Int): Unit = {
    touch(entry)
    entries.delete(entry)
    keepToBudget()
  }

  /** Spills or forgets what is too much; entry numbers are void behind it. */
  def keepToBudget(): Unit = if (written > nextLook || entries.bytes > roof) {
    val room = cacheBytes + budget.bytesPerWriteSet
    // Forgetting what was read is cheaper than spilling what was written. A quarter is for the free room of tables.
    if (!sealedForGood && written > room - room / 4) {
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
  def cursors(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Seq[Cursor] = {
    val inMemory = if (whole) writtenOf(state) else indexed(state, lower, upper)
    new MapCursor(entries, inMemory) +: spilled.reverseIterator.map(_.cursor(lower, upper)).toSeq
  }

  /** Everything written, in key order, each key once, newest first. */
  def sealing(): MergedCursor = {
    val inMemory = states.flatMap(writtenOf).toArray
    val sources = new MapCursor(entries, inMemory) +:
      spilled.reverseIterator.map(_.cursor(Array.emptyByteArray, null)).toSeq
    new MergedCursor(sources.toArray, _ => ())
  }

  /** The states that have written entries, in their order. */
  def states: Iterator[Int] = byState.keysIterator

  /** The written entries of a state, in key order. */
  def writtenOf(state: Int): Array[Int] =
    byState.get(state).fold(Array.emptyIntArray)(list => EntrySort.sort(entries, list.words, KeyCodec.StateBytes))

  /** Ends the transaction. The rows in memory, no more than a near cache may hold. */
  def close(): ByteMap = {
    entries.beginEpoch()
    if (entries.bytes > cacheBytes) shrink(cacheBytes / 2)
    spilled.foreach(_.close())
    spilled.clear()
    budget.writeSetClosed()
    entries
  }

  private def cacheBytes: Long = if (lent == null) SmallestCache else budget.bytesPerCache

  private def touch(entry: Int): Unit = if (!entries.isWritten(entry)) note(entry, entries.hasValue(entry))

  /** Notes that an entry is written from now on. */
  private def note(entry: Int, inBase: Boolean): Unit = {
    entries.markWritten(entry, inBase)
    list(entry)
    written += entries.entryBytes(entry)
  }

  private def list(entry: Int): Unit = {
    val state = entries.keyState(entry)
    if (state != lastState) {
      lastState = state
      lastEntries = byState.getOrElseUpdate(state, new Entries)
    }
    lastEntries.add(EntrySort.word(entries, entry, KeyCodec.StateBytes))
    if (KeyCodec.isOrdered(state)) indexes.get(state).foreach(_.add(entry)) else entries.index(entry)
  }

  private def indexed(state: Int, lower: Array[Byte], upper: Array[Byte]): Array[Int] =
    if (KeyCodec.isOrdered(state)) indexes.getOrElseUpdate(state, buildIndex(state)).range(lower, upper)
    else entries.underPrefix(state, lower).filter(entries.isWritten)

  private def buildIndex(state: Int): OrderedIndex = {
    val index = new OrderedIndex(entries)
    byState.get(state).foreach(_.words.foreach(word => index.add(word.toInt)))
    index
  }

  private def recall(key: Array[Byte], length: Int, hash: Int): Int = {
    val record = spilled.reverseIterator.map(_.find(key, length, hash)).find(_ != null)
    record match {
      case None => -1
      case Some(bytes) =>
        val entry = insert(key, length, hash, Run.wasThere(bytes))
        if (!Run.deleted(bytes)) {
          entries.put(entry, bytes, Run.HeadBytes, bytes.length - Run.HeadBytes)
          written += bytes.length
        }
        entry
    }
  }

  private def spill(): Unit = {
    Files.createDirectories(staging)
    spilled += Run.write(staging.resolve(s"run-${spilled.length}"), runOptions, entries,
      states.flatMap(writtenOf).toArray)
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
    indexes.clear()
  }
}

private[ckpt] object WriteSet {
  private final val NoState = -1
  private final val Ages = 64
  private final val Step = 64L << 10
  private final val SmallestCache = 1L << 20

  /** Entries of one state as `EntrySort` wants them, in the order in which they were written. */
  private final class Entries {
    private var all = new Array[Long](16)
    private var count = 0

    def add(word: Long): Unit = {
      if (count == all.length) all = Arrays.copyOf(all, count * 2)
      all(count) = word
      count += 1
    }

    def words: Array[Long] = Arrays.copyOf(all, count)
  }
}
