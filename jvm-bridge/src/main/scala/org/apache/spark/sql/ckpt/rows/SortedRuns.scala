package org.apache.spark.sql.ckpt.rows

import java.nio.file.{Files, Path}

import scala.collection.mutable

import org.rocksdb.{Options => RocksOptions}

/** The runs that a write set has spilled. Eight runs of one level become one of the next. The number of open files, and
  * how often a row is written, therefore grow with the logarithm of the spilled rows.
  */
private[ckpt] final class SortedRuns(staging: Path, options: RocksOptions) {
  private val runs = mutable.ArrayBuffer.empty[SortedRun] // the oldest first: their levels never rise
  private var made = 0
  private var spills = 0

  def isEmpty: Boolean = runs.isEmpty

  /** How many runs there are. */
  def length: Int = runs.length

  /** How many runs were spilled in all. */
  def spilled: Int = spills

  def spill(map: ByteMap, sorted: Array[Int]): Unit = {
    Files.createDirectories(staging)
    runs += SortedRun.write(newPath(), options, map, sorted)
    spills += 1
    while (lastLevel.length >= SortedRuns.MergedAtOnce) mergeLast()
  }

  /** The newest record of `key`, or null. */
  def find(key: Array[Byte], length: Int, hash: Int): Array[Byte] = {
    var found: Array[Byte] = null
    var i = runs.length - 1
    while (i >= 0 && found == null) {
      found = runs(i).find(key, length, hash)
      i -= 1
    }
    found
  }

  /** Cursors over [lower, upper), the newest first. */
  def cursors(lower: Array[Byte], upper: Array[Byte]): Seq[Cursor] =
    runs.reverseIterator.map(_.cursor(lower, upper)).toSeq

  def close(): Unit = {
    runs.foreach(_.close())
    runs.clear()
  }

  private def lastLevel: mutable.ArrayBuffer[SortedRun] =
    runs.takeRight(SortedRuns.MergedAtOnce).filter(_.level == runs.last.level)

  private def mergeLast(): Unit = {
    val before = lastLevel
    val merged = SortedRun.merge(newPath(), options, before.toSeq)
    runs.remove(runs.length - before.length, before.length)
    runs += merged
    before.foreach(_.retire())
  }

  private def newPath(): Path = {
    made += 1
    staging.resolve(s"run-$made")
  }
}

private[ckpt] object SortedRuns {
  private final val MergedAtOnce = 8
}
