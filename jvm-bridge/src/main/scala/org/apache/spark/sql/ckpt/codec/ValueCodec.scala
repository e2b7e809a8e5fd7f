package org.apache.spark.sql.ckpt.codec

import java.util.Arrays

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.unsafe.Platform

/** Values of one state: the bytes of an UnsafeRow, or, if a key has several values, each of them after its length (u32,
  * big-endian). If their schema may evolve, the id of the schema (u16, big-endian) is before each UnsafeRow.
  *
  * A decoded row belongs to the caller: writes to it change nothing that is stored or kept in memory. Not thread-safe.
  */
private[ckpt] final class ValueCodec(columns: Int, val multiple: Boolean, history: Option[ValueHistory]) {
  private val head = if (history.isDefined) ValueCodec.IdBytes else 0

  /** Whether the stored form of a single value is the row itself. */
  def isRow: Boolean = !multiple && history.isEmpty

  def decode(base: Array[Byte], from: Int, length: Int): UnsafeRow =
    if (multiple) {
      first(base, from, length)
    } else {
      single(base, from, length)
    }

  private def single(base: Array[Byte], from: Int, length: Int): UnsafeRow = history match {
    case None => copied(columns, base, from, length)
    case Some(schemas) =>
      val id = ValueCodec.readId(base, from)
      if (!schemas.isKnown(id)) {
        throw CkptErrors.format(s"A value has the schema $id, and only 0 to ${schemas.current} are known.")
      }
      schemas.evolve(id, copied(schemas.columns(id), base, from + head, length - head))
  }

  private def copied(columns: Int, base: Array[Byte], from: Int, length: Int): UnsafeRow = {
    val row = new UnsafeRow(columns)
    row.pointTo(Arrays.copyOfRange(base, from, from + length), length)
    row
  }

  /** All values of a key, in the order in which they were added, each as a new row. */
  def decodeAll(base: Array[Byte], from: Int, bytes: Int): Iterator[UnsafeRow] = new Iterator[UnsafeRow] {
    private var at = from
    override def hasNext: Boolean = at < from + bytes
    override def next(): UnsafeRow = {
      if (!hasNext) throw new NoSuchElementException("no more values of this key")
      val size = ValueCodec.readLength(base, at)
      val value = single(base, at + ValueCodec.LengthBytes, size)
      at += ValueCodec.LengthBytes + size
      value
    }
  }

  /** The stored form of one value. */
  def encode(value: UnsafeRow): Array[Byte] =
    if (multiple) encodeAll(Array(value))
    else {
      val result = new Array[Byte](head + value.getSizeInBytes)
      write(value, result, 0)
      result
    }

  /** The stored form of `values`. Concatenated stored forms of lists are the stored form of all their values. */
  def encodeAll(values: Array[UnsafeRow]): Array[Byte] = {
    val result = new Array[Byte](values.iterator.map(_.getSizeInBytes + ValueCodec.LengthBytes + head).sum)
    var at = 0
    values.foreach { value =>
      val size = head + value.getSizeInBytes
      Platform.putInt(result, Platform.BYTE_ARRAY_OFFSET + at, Integer.reverseBytes(size))
      write(value, result, at + ValueCodec.LengthBytes)
      at += ValueCodec.LengthBytes + size
    }
    result
  }

  private def write(value: UnsafeRow, result: Array[Byte], at: Int): Unit = {
    history.foreach { schemas =>
      result(at) = (schemas.current >> 8).toByte
      result(at + 1) = schemas.current.toByte
    }
    val to = Platform.BYTE_ARRAY_OFFSET + at + head
    Platform.copyMemory(value.getBaseObject, value.getBaseOffset, result, to, value.getSizeInBytes)
  }

  private def first(base: Array[Byte], from: Int, length: Int): UnsafeRow =
    if (length == 0) null else decodeAll(base, from, length).next()
}

private[ckpt] object ValueCodec {
  private final val IdBytes = 2
  private final val LengthBytes = 4

  private def readId(base: Array[Byte], at: Int): Int = (base(at) & 0xff) << 8 | base(at + 1) & 0xff

  private def readLength(base: Array[Byte], at: Int): Int =
    Integer.reverseBytes(Platform.getInt(base, Platform.BYTE_ARRAY_OFFSET + at))
}
