package org.apache.spark.sql.ckpt.transactions

import java.nio.ByteBuffer
import java.nio.file.Path

import scala.collection.mutable

import org.rocksdb.{Options => RocksOptions, _}

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.rows.{MergedCursor, WriteSet}

/** A sealed delta: the changes of row counts by state, the rows written, and the seal of the file. */
private[ckpt] final case class SealedDelta(rowChanges: Map[Int, Long], rows: Long, seal: Seal) {
  def bytes: Long = seal.bytes
}

/** Writes a write set as one sorted SST, the version marker first.
  *
  * Omits deleted keys that the base version never had.
  */
private[ckpt] final class DeltaWriter(table: BlockBasedTableConfig, compression: CompressionType) {
  private val options = new RocksOptions()
    .setCompressionType(compression)
    .setTableFormatConfig(table)
    .useFixedLengthPrefixExtractor(KeyCodec.HashedHead) // as state_store/database/tuning.py
  private var keyBuffer = ByteBuffer.allocateDirect(1 << 10)
  private var valueBuffer = ByteBuffer.allocateDirect(1 << 12)

  def close(): Unit = options.close()

  def write(path: Path, markerKey: Array[Byte], markerValue: Array[Byte], writes: WriteSet): SealedDelta = {
    val environment = new EnvOptions
    val writer = new SstFileWriter(environment, options)
    try {
      writer.open(path.toString)
      writer.put(markerKey, markerValue)
      val counts = new RowCounts
      if (writes.runs == 0) writes.states.foreach(state => writeState(writer, state, writes, counts))
      else writeMerged(writer, writes.sealing(), counts)
      writer.finish()
      SealedDelta(counts.changes, counts.rows, Seal.of(path))
    } finally {
      writer.close()
      environment.close()
    }
  }

  private def writeState(writer: SstFileWriter, state: Int, writes: WriteSet, counts: RowCounts): Unit = {
    val map = writes.map
    val sorted = writes.writtenOf(state)
    var i = 0
    while (i < sorted.length) {
      val entry = sorted(i)
      val inBase = map.wasThere(entry)
      if (map.hasValue(entry)) {
        put(
          writer, map.keySlab(entry), map.keyOffset(entry), map.keyLength(entry),
          map.valueSlab(entry), map.valueOffset(entry), map.valueLength(entry))
        counts.written(state, inBase)
      } else if (inBase) {
        writer.delete(map.key(entry))
        counts.removed(state)
      }
      i += 1
    }
  }

  private def writeMerged(writer: SstFileWriter, rows: MergedCursor, counts: RowCounts): Unit =
    try {
      while (rows.valid) {
        val key = rows.key
        val state = ((key(0) & 0xff) << 8) | (key(1) & 0xff)
        if (!rows.deleted) {
          put(writer, key, 0, key.length, rows.valueBase, rows.valueFrom, rows.valueLength)
          counts.written(state, rows.wasThere)
        } else if (rows.wasThere) {
          writer.delete(key)
          counts.removed(state)
        }
        rows.advance()
      }
    } finally {
      rows.close()
    }

  private def put(
      writer: SstFileWriter, key: Array[Byte], keyFrom: Int, keyLength: Int,
      value: Array[Byte], valueFrom: Int, valueLength: Int): Unit = {
    keyBuffer = fill(keyBuffer, key, keyFrom, keyLength)
    valueBuffer = fill(valueBuffer, value, valueFrom, valueLength)
    writer.put(keyBuffer, valueBuffer)
  }

  private def fill(buffer: ByteBuffer, source: Array[Byte], from: Int, length: Int): ByteBuffer = {
    val target = if (buffer.capacity >= length) buffer else ByteBuffer.allocateDirect(math.max(length, length * 2))
    target.clear()
    target.put(source, from, length)
    target.flip()
    target
  }
}

/** Counts what a delta changes, by state. */
private[ckpt] final class RowCounts {
  private val byState = mutable.HashMap.empty[Int, Long]
  private var total = 0L

  def written(state: Int, inBase: Boolean): Unit = {
    total += 1
    if (!inBase) add(state, 1)
  }

  def removed(state: Int): Unit = {
    total += 1
    add(state, -1)
  }

  def rows: Long = total
  def changes: Map[Int, Long] = byState.toMap

  private def add(state: Int, change: Long): Unit = byState.update(state, byState.getOrElse(state, 0L) + change)
}
