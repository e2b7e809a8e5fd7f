package org.apache.spark.sql.ckpt.changes

import java.util.Arrays

import org.rocksdb.{Options => RocksOptions, _}

import org.apache.spark.sql.ckpt.CkptException
import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.rows.{Cursor, ForwardingCursor, RocksCursor}

/** A table file of a delta, read as it is: rows, and the tombstones of removed rows.
  *
  * RocksDB hides tombstones, but not from a reader that sets a lower bound for timestamps. These keys have no
  * timestamps, so the bound hides nothing. Such a reader gets stored keys with a trailer of eight bytes, which says
  * what kind of row it is.
  */
private[ckpt] final class DeltaTable(path: String, options: RocksOptions) {
  private val bound = new Slice(Array[Byte](0))
  private val everything = new ReadOptions().setTotalOrderSeek(true).setFillCache(false).setIterStartTs(bound)
  private val reader = new SstFileReader(options)

  try {
    reader.open(path)
  } catch {
    case failure: Throwable =>
      close()
      throw failure
  }

  /** The rows of one state, in key order. The caller closes the cursor before the table. */
  def cursor(state: Int): Cursor = new DeltaCursor(
    path,
    new RocksCursor[SstFileReaderIterator](
      reader.newIterator(everything), _.key, _.value, KeyCodec.stateBound(state), KeyCodec.stateBound(state + 1),
      _.close()))

  def close(): Unit = {
    reader.close()
    everything.close()
    bound.close()
  }
}

/** Removes the trailer from stored keys. */
private final class DeltaCursor(path: String, stored: Cursor) extends ForwardingCursor {
  import DeltaCursor._

  private var userKey: Array[Byte] = _
  private var kind: Byte = _
  load()

  override protected def row: Cursor = stored
  override def valid: Boolean = stored.valid
  override def key: Array[Byte] = userKey
  override def deleted: Boolean = kind == Deletion
  override def close(): Unit = stored.close()

  override def advance(): Unit = {
    stored.advance()
    load()
  }

  private def load(): Unit = if (stored.valid) {
    val bytes = stored.key
    val end = bytes.length - TrailerBytes
    // Writers of table files do not number rows: the rest of the trailer is zero.
    if (end < KeyCodec.StateBytes || (bytes(end) & 0xff) > Value || !Arrays.equals(bytes, end + 1, bytes.length,
        Unnumbered, 0,
        7)) {
      throw new CkptException("FormatError", s"$path has a row of a kind that a delta cannot have.", "", false, null)
    }
    kind = bytes(end)
    userKey = Arrays.copyOf(bytes, end)
  }
}

private object DeltaCursor {
  private final val TrailerBytes = 8
  private final val Deletion = 0
  private final val Value = 1
  private val Unnumbered = new Array[Byte](TrailerBytes - 1)
}
