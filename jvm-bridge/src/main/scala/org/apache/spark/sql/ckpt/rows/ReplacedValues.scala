package org.apache.spark.sql.ckpt.rows

import scala.collection.mutable

/** The locations of previous values of `ByteMap` entries that were written again, as long as an earlier scan is open.
  * Keeps nothing while no scan is open. Not thread-safe.
  */
private[ckpt] final class ReplacedValues {
  import ReplacedValues._

  private var newest = mutable.LongMap.empty[Replaced]
  private var watchers = 0
  private var last = 0
  private var seen = 0

  def isWatched: Boolean = watchers > 0

  /** Begins a scan of the first `entries` entries; returns its number. */
  def open(entries: Int): Int = {
    watchers += 1
    seen = entries
    last += 1
    last
  }

  /** Ends a scan. */
  def close(): Unit = {
    watchers -= 1
    if (watchers == 0) {
      // One that has held many values takes long to clear, also when it is empty.
      if (newest.nonEmpty) newest = mutable.LongMap.empty[Replaced]
      last = 0
    }
  }

  /** Keeps the present value of `entry` for the open scans, before it is replaced. */
  def add(entry: Int, location: Long, length: Int): Unit = if (entry < seen) {
    val before = newest.getOrNull(entry)
    if (before == null || before.lastScan < last) newest(entry) = new Replaced(last, location, length, before)
  }

  /** The value that scan `number` sees; null stands for the present one. */
  def of(entry: Int, number: Int): Replaced = {
    var replaced = newest.getOrNull(entry)
    var found: Replaced = null
    while (replaced != null && replaced.lastScan >= number) {
      found = replaced
      replaced = replaced.before
    }
    found
  }
}

private[ckpt] object ReplacedValues {

  /** A value, and the number of the last scan that sees it. */
  final class Replaced(val lastScan: Int, val location: Long, val length: Int, val before: Replaced)
}
