package org.apache.spark.sql.ckpt.rows

import java.util.Arrays

import scala.collection.mutable

import org.apache.spark.sql.ckpt.codec.KeyCodec

/** The written entries of one state in key order, for scans of any range.
  *
  * Adding an entry costs next to nothing. Each scan sorts the entries that were added since the last one. They are
  * joined with the previous run if they have at least an eighth of its size. Scans between writes therefore see few
  * sorted runs, and each entry is moved only a few times. A run that a cursor reads never changes.
  */
private[ckpt] final class SortedEntries(map: ByteMap) {
  import SortedEntries._

  private var added = new Array[Long](16)
  private var count = 0
  private val runs = mutable.ArrayBuffer.empty[Array[Long]] // of words as `EntrySort` has them, the longest first

  def add(entry: Int): Unit = {
    if (count == added.length) added = Arrays.copyOf(added, count * 2)
    added(count) = EntrySort.word(map, entry, KeyCodec.StateBytes)
    count += 1
  }

  /** All entries in key order. */
  def all: Array[Long] = {
    sortAdded()
    while (runs.length > 1) joinLast()
    if (runs.isEmpty) Array.emptyLongArray else runs.head
  }

  /** The parts of all runs that lie in [lower, upper); upper null: to the end. */
  def ranges(lower: Array[Byte], upper: Array[Byte]): Array[Range] = {
    sortAdded()
    while (runs.length > 1 && runs(runs.length - 1).length * JoinAt >= runs(runs.length - 2).length) joinLast()
    runs.iterator
      .map(run => new Range(run, position(run, lower), if (upper == null) run.length else position(run, upper)))
      .filter(range => range.from < range.until) // Spark asks for ranges that end before they begin
      .toArray
  }

  private def sortAdded(): Unit = if (count > 0) {
    val run = Arrays.copyOf(added, count)
    EntrySort.sortWords(map, run, KeyCodec.StateBytes)
    runs += run
    count = 0
  }

  private def joinLast(): Unit = {
    val last = runs.remove(runs.length - 1)
    runs(runs.length - 1) = joined(runs.last, last)
  }

  private def joined(left: Array[Long], right: Array[Long]): Array[Long] = {
    val all = new Array[Long](left.length + right.length)
    var from = 0
    var i = 0
    while (i < right.length) {
      val until = firstAfter(left, from, right(i))
      System.arraycopy(left, from, all, from + i, until - from)
      all(until + i) = right(i)
      from = until
      i += 1
    }
    System.arraycopy(left, from, all, from + i, left.length - from)
    all
  }

  /** The first place from `start` on whose key is greater than that of `word`; fast if it is near. */
  private def firstAfter(run: Array[Long], start: Int, word: Long): Int = {
    var step = 1
    while (start + step <= run.length && compare(map, run(start + step - 1), word) < 0) step *= 2
    var (low, high) = (start + step / 2, math.min(start + step - 1, run.length))
    while (low < high) {
      val middle = (low + high) >>> 1
      if (compare(map, run(middle), word) < 0) low = middle + 1 else high = middle
    }
    low
  }

  /** The first place whose key is not less than `bound`. */
  private def position(run: Array[Long], bound: Array[Byte]): Int =
    if (isOfState(run, bound)) positionInState(run, bound)
    else if (map.compareKey(run(0).toInt, bound) < 0) run.length
    else 0

  /** Whether a bound lies within the state of these entries, not at its ends. */
  private def isOfState(run: Array[Long], bound: Array[Byte]): Boolean = bound.length >= KeyCodec.StateBytes &&
    map.keyState(run(0).toInt) == (((bound(0) & 0xff) << 8) | (bound(1) & 0xff))

  private def positionInState(run: Array[Long], bound: Array[Byte]): Int = {
    val word = wordOf(bound)
    var (low, high) = (0, run.length)
    while (low < high) {
      val middle = (low + high) >>> 1
      val at = (run(middle) >> 32).toInt
      val order = if (at != word) Integer.compare(at, word) else map.compareKey(run(middle).toInt, bound)
      if (order < 0) low = middle + 1 else high = middle
    }
    low
  }
}

private[ckpt] object SortedEntries {
  private final val JoinAt = 8

  /** A part of a sorted run. */
  final class Range(val run: Array[Long], val from: Int, val until: Int)

  def compare(map: ByteMap, left: Long, right: Long): Int = {
    val (l, r) = (left >> 32, right >> 32)
    if (l != r) java.lang.Long.compare(l, r) else map.compareKeys(left.toInt, right.toInt)
  }

  /** The high half of `EntrySort.word` for a bound, which may be shorter than keys. */
  private def wordOf(bound: Array[Byte]): Int = {
    var word = 0
    var i = KeyCodec.StateBytes
    while (i < KeyCodec.StateBytes + 4) {
      word = (word << 8) | (if (i < bound.length) bound(i) & 0xff else 0)
      i += 1
    }
    word ^ 0x80000000
  }
}
