package org.apache.spark.sql.ckpt

import java.util.Arrays

/** The rows that the last short prefix scans of one transaction found in its base version.
  *
  * The base version does not change, so what a scan has read to its end is what the next one would read; and a key under
  * such a prefix is in the base version only if the scan has met it. Session windows and joins scan a key's rows and
  * then scan or change them again.
  */
private[ckpt] final class RecentScans {
  import RecentScans._

  private val slots = new Array[Scanned](Slots)

  /** What the base version has from `prefix` on up to the next prefix, if that was scanned lately; else null. */
  def of(prefix: Array[Byte]): Scanned = {
    val scanned = slots(slot(prefix))
    if (scanned != null && Arrays.equals(scanned.prefix, prefix)) scanned else null
  }

  /** The scan that would have met `key`, or null. */
  def around(key: Array[Byte], length: Int): Scanned =
    if (length < KeyCodec.HashedHead) {
      null
    } else {
      val scanned = slots(slot(key))
      val fits = scanned != null && scanned.prefix.length <= length &&
        Arrays.equals(scanned.prefix, 0, scanned.prefix.length, key, 0, scanned.prefix.length)
      if (fits) scanned else null
    }

  /** A cursor that passes `rows` on, all of `prefix`, and remembers them if they are few. */
  def recording(prefix: Array[Byte], rows: Cursor): Cursor = new Recorder(prefix, rows)

  private final class Recorder(prefix: Array[Byte], rows: Cursor) extends ForwardingCursor {
    private var keys = new Array[Array[Byte]](4)
    private var values = new Array[Array[Byte]](4)
    private var count = 0
    private var bytes = 0L
    look()

    override protected def row: Cursor = rows
    override def valid: Boolean = rows.valid
    override def close(): Unit = rows.close()

    override def advance(): Unit = if (rows.valid) {
      rows.advance()
      look()
    }

    private def look(): Unit = if (keys != null) {
      if (!rows.valid) {
        slots(slot(prefix)) = new Scanned(prefix, Arrays.copyOf(keys, count), Arrays.copyOf(values, count))
        keys = null
      } else if (count == MostRows || bytes + rows.key.length + rows.valueLength > MostBytes) {
        keys = null
      } else {
        if (count == keys.length) {
          keys = Arrays.copyOf(keys, count * 2)
          values = Arrays.copyOf(values, count * 2)
        }
        keys(count) = rows.key
        values(count) = rows.valueBase
        bytes += rows.key.length + rows.valueLength
        count += 1
      }
    }
  }
}

private[ckpt] object RecentScans {
  private final val Slots = 256
  private final val MostRows = 64
  private final val MostBytes = 4 << 10

  /** All prefixes begin with a state and a hash. */
  private def slot(key: Array[Byte]): Int = ByteMap.hash(key, KeyCodec.HashedHead) & (Slots - 1)

  /** The rows under one prefix, in key order. */
  final class Scanned(val prefix: Array[Byte], keys: Array[Array[Byte]], values: Array[Array[Byte]]) {

    def has(key: Array[Byte], length: Int): Boolean = {
      var i = 0
      while (i < keys.length) {
        if (keys(i).length == length && Arrays.equals(keys(i), 0, length, key, 0, length)) return true
        i += 1
      }
      false
    }

    def cursor: Cursor = new Cursor {
      private var at = 0
      override def valid: Boolean = at < keys.length
      override def key: Array[Byte] = if (valid) keys(at) else null
      override def deleted: Boolean = false
      override def wasThere: Boolean = true
      override def valueBase: Array[Byte] = values(at)
      override def valueFrom: Int = 0
      override def valueLength: Int = values(at).length
      override def advance(): Unit = at += 1
      override def close(): Unit = at = keys.length
    }
  }
}
