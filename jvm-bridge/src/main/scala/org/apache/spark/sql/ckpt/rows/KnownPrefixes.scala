package org.apache.spark.sql.ckpt.rows

import java.util.Arrays

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.minor.codec.Bytes

/** Prefixes of hashed states whose rows are all in memory, so that a scan of them needs no database.
  *
  * If a scan was read to its end, its rows stay in the near cache with a mark of its prefix, for this transaction and
  * for those that get its rows. Session windows and joins scan a key's rows and then scan or change them again, in this
  * batch and in later ones. A map that forgets rows forgets all marks. After writes were spilled, marks are neither
  * made nor used, because memory does not show spilled rows.
  */
private[ckpt] final class KnownPrefixes(writes: WriteSet) {
  import KnownPrefixes._

  private val recent = new Array[Array[Byte]](Slots)
  private var recentIn = writes.map

  /** The rows of `prefix` that the transaction sees now, if all of them are in memory; else null. The caller closes the
    * cursor, which calls `onClose` then.
    */
  def rows(state: Int, prefix: Array[Byte], onClose: Cursor => Unit): Cursor = {
    val found = if (isOn && isMarked(prefix)) writes.map.underPrefix(state, prefix, MaxInMemory) else null
    if (found == null) {
      null
    } else {
      remember(prefix)
      found.foreach(writes.map.used)
      new MemoryCursor(writes.map, found, onClose)
    }
  }

  /** A cursor over `rows`, all those of `prefix` in the base version, which keeps them in memory if they are few. */
  def recording(prefix: Array[Byte], rows: Cursor): Cursor = if (isOn) new Recorder(prefix, rows) else rows

  /** Whether a row with this key would be in memory, because all rows of its prefix are. */
  def cover(key: Array[Byte], length: Int): Boolean = isOn && length >= KeyCodec.HashedHead && {
    val prefix = if (recentIn eq writes.map) recent(slot(key)) else null
    prefix != null && prefix.length <= length && Bytes.areEqual(prefix, 0, prefix.length, key, 0, prefix.length)
  }

  private def isOn: Boolean = writes.keepsReads && writes.runs == 0 && !writes.isComplete

  private def isMarked(prefix: Array[Byte]): Boolean = {
    val mark = markOf(prefix)
    writes.find(mark, mark.length, ByteMap.hash(mark, mark.length)) >= 0
  }

  private def mark(prefix: Array[Byte]): Unit = {
    val mark = markOf(prefix)
    val hash = ByteMap.hash(mark, mark.length)
    if (writes.find(mark, mark.length, hash) < 0) writes.remember(mark, mark.length, hash, null, 0)
    remember(prefix)
  }

  private def remember(prefix: Array[Byte]): Unit = {
    if (recentIn ne writes.map) {
      Arrays.fill(recent.asInstanceOf[Array[AnyRef]], null)
      recentIn = writes.map
    }
    recent(slot(prefix)) = prefix
  }

  private final class Recorder(prefix: Array[Byte], rows: Cursor) extends ForwardingCursor {
    private val map = writes.map
    private var left = MaxRows
    private var leftBytes = MaxBytes
    look()

    override protected def row: Cursor = rows
    override def valid: Boolean = rows.valid
    override def close(): Unit = rows.close()

    override def advance(): Unit = if (rows.valid) {
      rows.advance()
      look()
    }

    private def look(): Unit = if (left >= 0) {
      // If another map has replaced this one, it may lack the rows that were kept here.
      if ((writes.map ne map) || !isOn) {
        left = -1
      } else if (!rows.valid) {
        mark(prefix)
        left = -1
        writes.keepToBudget()
      } else {
        left -= 1
        leftBytes -= rows.key.length + rows.valueLength
        if (left < 0 || leftBytes < 0) left = -1 else keep(rows.key)
      }
    }

    private def keep(key: Array[Byte]): Unit = {
      val hash = ByteMap.hash(key, key.length)
      if (map.find(key, key.length, hash) < 0) {
        writes.remember(key, key.length, hash, rows.valueBase, rows.valueLength)
      }
    }
  }
}

private[ckpt] object KnownPrefixes {
  private final val Slots = 256
  private final val MaxRows = 64
  private final val MaxBytes = 4 << 10

  /** Many rows may have been written since; with more than this, a scan of the database costs less than sorting. */
  private final val MaxInMemory = 512

  /** No state has this number. */
  final val MarkState = 0xffff

  /** All prefixes begin with a state and a hash. */
  private def slot(key: Array[Byte]): Int = ByteMap.hash(key, KeyCodec.HashedHead) & (Slots - 1)

  private def markOf(prefix: Array[Byte]): Array[Byte] = {
    val mark = new Array[Byte](KeyCodec.StateBytes + prefix.length)
    mark(0) = (MarkState >>> 8).toByte
    mark(1) = MarkState.toByte
    System.arraycopy(prefix, 0, mark, KeyCodec.StateBytes, prefix.length)
    mark
  }
}
