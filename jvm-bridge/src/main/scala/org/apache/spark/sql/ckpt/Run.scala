package org.apache.spark.sql.ckpt

import java.nio.file.Path

import org.rocksdb.{Options => RocksOptions, _}

/** A sorted run of a write set that outgrew its memory: an SST in the staging folder, read by this transaction alone.
  *
  * A record is one byte (bit 0: deleted; bit 1: the base version has the key) and the value: a tombstone has no room for
  * the second. A filter of one bit per hash keeps most look-ups of other keys away from the file.
  */
private[ckpt] final class Run(reader: SstFileReader, filter: Array[Long]) {
  private val options = new ReadOptions
  private lazy val lookups = reader.newIterator(options)

  /** The record of `key`, or null. */
  def find(key: Array[Byte], length: Int, hash: Int): Array[Byte] = {
    if (!Run.mayContain(filter, hash)) return null
    val exact = if (key.length == length) key else java.util.Arrays.copyOf(key, length)
    lookups.seek(exact)
    if (lookups.isValid && java.util.Arrays.equals(lookups.key, exact)) {
      lookups.value
    } else {
      lookups.status()
      null
    }
  }

  def cursor(lower: Array[Byte], upper: Array[Byte]): RunCursor = new RunCursor(
    new RocksCursor[SstFileReaderIterator](reader.newIterator(options), _.key, _.value, lower, upper, _.close()))

  def close(): Unit = {
    lookups.close()
    options.close()
    reader.close()
  }
}

private[ckpt] final class RunCursor(records: Cursor) extends Cursor {
  override def valid: Boolean = records.valid
  override def key: Array[Byte] = records.key
  override def deleted: Boolean = Run.deleted(records.valueBase)
  override def valueBase: Array[Byte] = records.valueBase
  override def valueFrom: Int = Run.HeadBytes
  override def valueLength: Int = records.valueLength - Run.HeadBytes
  override def advance(): Unit = records.advance()
  override def close(): Unit = records.close()
  override def wasThere: Boolean = Run.wasThere(records.valueBase)
}

private[ckpt] object Run {
  final val HeadBytes = 1

  def deleted(record: Array[Byte]): Boolean = (record(0) & 1) != 0
  def wasThere(record: Array[Byte]): Boolean = (record(0) & 2) != 0

  def write(path: Path, options: RocksOptions, map: ByteMap, sorted: Array[Int]): Run = {
    val filter = new Array[Long](math.max(1, Integer.highestOneBit(sorted.length) * 2 * 8 / 64))
    val environment = new EnvOptions
    val writer = new SstFileWriter(environment, options)
    try {
      writer.open(path.toString)
      sorted.foreach { entry =>
        val length = math.max(0, map.valueLength(entry))
        val record = new Array[Byte](HeadBytes + length)
        record(0) = ((if (map.wasThere(entry)) 2 else 0) | (if (map.hasValue(entry)) 0 else 1)).toByte
        if (length > 0) System.arraycopy(map.valueSlab(entry), map.valueOffset(entry), record, HeadBytes, length)
        writer.put(map.key(entry), record)
        add(filter, map.hash(entry))
      }
      writer.finish()
    } finally {
      writer.close()
      environment.close()
    }
    val reader = new SstFileReader(options)
    reader.open(path.toString)
    new Run(reader, filter)
  }

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
