package org.apache.spark.sql.ckpt.rows

import java.nio.file.{Files, Path}
import java.util.Arrays

import org.rocksdb.{Options => RocksOptions, _}

import org.apache.spark.sql.ckpt.minor.codec.Bytes

/** A sorted run of a write set that outgrew its memory: an SST in the staging folder, read by this transaction alone.
  *
  * A record is one byte (bit 0: deleted; bit 1: the base version has the key) and the value. RocksDB tombstones are not
  * used, because they have no room for bit 1. A filter of one bit per hash saves most look-ups of other keys in the
  * file; its first and last key save most scans of other ranges. `level`: how many times its rows were merged.
  */
private[ckpt] final class SortedRun(
    path: Path, reader: SstFileReader, filter: Array[Long], first: Array[Byte], last: Array[Byte], val rows: Int,
    val level: Int) {
  private val options = new ReadOptions
  private lazy val lookups = reader.newIterator(options)
  private var cursors = 0
  private var retired = false

  /** The record of `key`, or null. */
  def find(key: Array[Byte], length: Int, hash: Int): Array[Byte] = {
    if (!SortedRun.mayContain(filter, hash)) return null
    val exact = if (key.length == length) key else Arrays.copyOf(key, length)
    lookups.seek(exact)
    if (lookups.isValid && Arrays.equals(lookups.key, exact)) {
      lookups.value
    } else {
      lookups.status()
      null
    }
  }

  /** The records in [lower, upper). The file is first read when a record is asked for more than the first key. */
  def cursor(lower: Array[Byte], upper: Array[Byte]): Cursor = {
    cursors += 1
    val isOutside =
      Bytes.compareUnsigned(last, lower) < 0 || upper != null && Bytes.compareUnsigned(first, upper) >= 0
    val start = if (isOutside) null else if (Bytes.compareUnsigned(first, lower) >= 0) first else lower
    new SortedRunCursor(
      if (start eq first) first else null, if (isOutside) null else () => open(start, upper), () => closed())
  }

  private def open(lower: Array[Byte], upper: Array[Byte]): Cursor = new RocksCursor[SstFileReaderIterator](
    reader.newIterator(options), _.key, _.value, lower, upper, _.close())

  private def closed(): Unit = {
    cursors -= 1
    if (retired && cursors == 0) closeReader()
  }

  /** Ends the run and removes its file; open cursors remain usable. */
  def retire(): Unit = {
    Files.delete(path)
    close()
  }

  /** Ends the run and keeps its file. */
  def close(): Unit = {
    lookups.close()
    retired = true
    if (cursors == 0) closeReader()
  }

  private def closeReader(): Unit = {
    options.close()
    reader.close()
  }
}

/** A cursor at the first key, if that is known, which has not read the file: a scan that ends after few rows does not
  * read most runs at all. `open` is null if there are no records.
  */
private[ckpt] final class SortedRunCursor(first: Array[Byte], open: () => Cursor, onClose: () => Unit) extends Cursor {
  private var opened: Cursor = _
  private var isClosed = false

  override def valid: Boolean = !isClosed && open != null && (isAtFirst || records.valid)
  override def key: Array[Byte] = if (isAtFirst) first else records.key
  override def deleted: Boolean = SortedRun.deleted(records.valueBase)
  override def valueBase: Array[Byte] = records.valueBase
  override def valueFrom: Int = SortedRun.HeadBytes
  override def valueLength: Int = records.valueLength - SortedRun.HeadBytes
  override def advance(): Unit = if (valid) records.advance()
  override def wasThere: Boolean = SortedRun.wasThere(records.valueBase)

  override def close(): Unit = if (!isClosed) {
    isClosed = true
    if (opened != null) opened.close()
    onClose()
  }

  private def isAtFirst: Boolean = opened == null && first != null

  private def records: Cursor = {
    if (opened == null) opened = open()
    opened
  }
}

private[ckpt] object SortedRun {
  final val HeadBytes = 1

  def deleted(record: Array[Byte]): Boolean = (record(0) & 1) != 0
  def wasThere(record: Array[Byte]): Boolean = (record(0) & 2) != 0

  /** Writes entries of a map, which are in key order. */
  def write(path: Path, options: RocksOptions, map: ByteMap, sorted: Array[Int]): SortedRun =
    make(path, options, sorted.length, level = 0) { add =>
      sorted.foreach { entry =>
        val length = math.max(0, map.valueLength(entry))
        val record = new Array[Byte](HeadBytes + length)
        record(0) = ((if (map.wasThere(entry)) 2 else 0) | (if (map.hasValue(entry)) 0 else 1)).toByte
        if (length > 0) System.arraycopy(map.valueSlab(entry), map.valueOffset(entry), record, HeadBytes, length)
        add(map.key(entry), map.hash(entry), record)
      }
    }

  /** Writes the union of `runs`, which are given oldest first. */
  def merge(path: Path, options: RocksOptions, runs: Seq[SortedRun]): SortedRun =
    make(path, options, runs.map(_.rows).sum, runs.map(_.level).max + 1) { add =>
      val newestFirst = runs.reverseIterator.map(_.cursor(Array.emptyByteArray, null)).toArray
      val rows = new MergedCursor(newestFirst, _ => ())
      try {
        while (rows.valid) {
          add(rows.key, ByteMap.hash(rows.key, rows.key.length), rows.valueBase) // in a run, this is the whole record
          rows.advance()
        }
      } finally {
        rows.close()
      }
    }

  /** Makes a run of the records that `fill` adds, at most `most`. */
  private def make(path: Path, options: RocksOptions, most: Int, level: Int)(
      fill: ((Array[Byte], Int, Array[Byte]) => Unit) => Unit): SortedRun = {
    val filter = new Array[Long](math.max(1, Integer.highestOneBit(math.min(most, MaxFiltered)) * 2 * 8 / 64))
    val environment = new EnvOptions
    val writer = new SstFileWriter(environment, options)
    var rows = 0
    var first, last = Array.emptyByteArray
    try {
      writer.open(path.toString)
      fill { (key, hash, record) =>
        writer.put(key, record)
        add(filter, hash)
        if (rows == 0) first = key
        last = key
        rows += 1
      }
      writer.finish()
    } finally {
      writer.close()
      environment.close()
    }
    val reader = new SstFileReader(options)
    reader.open(path.toString)
    new SortedRun(path, reader, filter, first, last, rows, level)
  }

  /** A filter has no more bits than an Int counts. */
  private final val MaxFiltered = 1 << 26

  private def add(filter: Array[Long], hash: Int): Unit = {
    val bit = spread(hash) & (filter.length * 64 - 1)
    filter(bit >>> 6) |= 1L << (bit & 63)
  }

  private def mayContain(filter: Array[Long], hash: Int): Boolean = {
    val bit = spread(hash) & (filter.length * 64 - 1)
    (filter(bit >>> 6) & (1L << (bit & 63))) != 0
  }

  private def spread(hash: Int): Int = (hash * 0x9e3779b9) ^ (hash >>> 15)
}
