package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path}

import scala.collection.mutable

import org.rocksdb.{Options => RocksOptions}

/** What one transaction has read and written, and what its reads told about the base version.
  *
  * An entry exists for every key that was touched; its mark says whether the base version has the key, so that row
  * counts are exact with no read per write. Absent, deleted and never looked at are different things. When it outgrows
  * its budget the written entries are spilled as one sorted run and the others forgotten. Not thread-safe.
  */
private[ckpt] final class WriteSet(staging: Path, runOptions: RocksOptions, budget: MemoryBudget) {
  import WriteSet._

  private var entries = new ByteMap
  private val spilled = mutable.ArrayBuffer.empty[Run]
  private val indexes = mutable.HashMap.empty[Int, java.util.TreeMap[Array[Byte], Integer]]
  private var sealedForGood = false

  budget.writeSetOpened()

  def map: ByteMap = entries
  def bytes: Long = entries.bytes
  def runs: Int = spilled.length
  def isEmpty: Boolean = spilled.isEmpty && (0 until entries.size).forall(entry => !entries.isWritten(entry))

  /** The entry of a key that was written or read before, or -1. A spilled row comes back as a written entry. */
  def find(key: Array[Byte], length: Int, hash: Int): Int = {
    val entry = entries.find(key, length, hash)
    if (entry >= 0 || spilled.isEmpty) entry else recall(key, length, hash)
  }

  def findOrInsert(key: Array[Byte], length: Int, hash: Int): Int = {
    val entry = find(key, length, hash)
    if (entry >= 0) entry else entries.insert(key, length, hash)
  }

  /** Must be called behind every write of an entry; may spill, after which entry numbers are void. */
  def written(entry: Int, first: Boolean): Unit = {
    if (first && indexes.nonEmpty) {
      indexes.get(stateOf(entry)).foreach(_.put(entries.key(entry), entry))
    }
    spillWhenFull()
  }

  def spillWhenFull(): Unit = if (!sealedForGood && entries.bytes > budget.bytesPerWriteSet) spill()

  /** After the commit nothing is spilled any more: the staging folder is gone. */
  def seal(): Unit = sealedForGood = true

  /** Cursors over the written rows in [lower, upper), newest first. `whole`: the range is one state. */
  def cursors(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Seq[Cursor] = {
    val inMemory = if (whole) writtenOf(state) else indexed(state, lower, upper)
    new MapCursor(entries, inMemory) +: spilled.reverseIterator.map(_.cursor(lower, upper)).toSeq
  }

  /** Everything written, in key order, each key once, newest first. */
  def sealing(): MergedCursor = {
    val sources = new MapCursor(entries, allWritten()) +:
      spilled.reverseIterator.map(_.cursor(Array.emptyByteArray, null)).toSeq
    new MergedCursor(sources.toArray, _ => ())
  }

  /** All written entries of a write set that never spilled, in key order. */
  def allWritten(): Array[Int] = written(_ => true)

  private def written(wanted: Int => Boolean): Array[Int] = {
    val found = mutable.ArrayBuilder.make[Int]
    var entry = 0
    while (entry < entries.size) {
      if (entries.isWritten(entry) && wanted(entry)) found += entry
      entry += 1
    }
    val sorted = found.result()
    EntrySort.sort(entries, sorted)
    sorted
  }

  def close(): Unit = {
    spilled.foreach(_.close())
    spilled.clear()
    budget.writeSetClosed()
  }

  private def stateOf(entry: Int): Int = entries.keyWord(entry, 0) >>> 16

  private def writtenOf(state: Int): Array[Int] = written(stateOf(_) == state)

  private def indexed(state: Int, lower: Array[Byte], upper: Array[Byte]): Array[Int] = {
    val index = indexes.getOrElseUpdate(state, buildIndex(state))
    val range = if (upper == null) index.tailMap(lower, true) else index.subMap(lower, true, upper, false)
    val found = mutable.ArrayBuilder.make[Int]
    range.values.forEach(entry => found += entry.intValue)
    found.result()
  }

  private def buildIndex(state: Int): java.util.TreeMap[Array[Byte], Integer] = {
    val index = new java.util.TreeMap[Array[Byte], Integer](ByteOrder)
    var entry = 0
    while (entry < entries.size) {
      if (entries.isWritten(entry) && stateOf(entry) == state) index.put(entries.key(entry), entry)
      entry += 1
    }
    index
  }

  private def recall(key: Array[Byte], length: Int, hash: Int): Int = {
    val record = spilled.reverseIterator.map(_.find(key, length, hash)).find(_ != null)
    record match {
      case None => -1
      case Some(bytes) =>
        val entry = entries.insert(key, length, hash)
        entries.mark(entry, Run.mark(bytes))
        if (Run.deleted(bytes)) entries.delete(entry)
        else entries.put(entry, bytes, Run.HeadBytes, bytes.length - Run.HeadBytes)
        indexes.get(stateOf(entry)).foreach(_.put(entries.key(entry), entry))
        entry
    }
  }

  private def spill(): Unit = {
    val sorted = allWritten()
    if (sorted.nonEmpty) {
      Files.createDirectories(staging)
      spilled += Run.write(staging.resolve(s"run-${spilled.length}"), runOptions, entries, sorted)
    }
    // Scans that have begun keep the former map; everybody else starts anew.
    entries = new ByteMap
    indexes.clear()
  }
}

private[ckpt] object WriteSet {
  final val Unknown: Byte = 0
  final val InBase: Byte = 1
  final val NotInBase: Byte = 2

  object ByteOrder extends java.util.Comparator[Array[Byte]] {
    override def compare(left: Array[Byte], right: Array[Byte]): Int =
      java.util.Arrays.compareUnsigned(left, right)
  }
}
