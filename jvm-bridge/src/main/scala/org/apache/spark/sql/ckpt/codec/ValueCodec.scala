package org.apache.spark.sql.ckpt
package codec

import java.util.Arrays

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Values of one state: the bytes of an UnsafeRow, or, if a key has several values, each of them after its length (u32,
  * big-endian).
  *
  * A decoded row belongs to the caller: writes to it change nothing that is stored or kept in memory.
  */
private[ckpt] final class ValueCodec(columns: Int, val multiple: Boolean) {

  def decode(base: Array[Byte], from: Int, length: Int): UnsafeRow =
    if (multiple) {
      first(base, from, length)
    } else {
      copied(base, from, length)
    }

  private def copied(base: Array[Byte], from: Int, length: Int): UnsafeRow = {
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
      val value = copied(base, at + 4, size)
      at += 4 + size
      value
    }
  }

  /** The stored form of `values`. Stored forms of several lists, one after the other, are that of all their values. */
  def encode(values: Array[UnsafeRow]): Array[Byte] = {
    val result = new Array[Byte](values.iterator.map(_.getSizeInBytes + 4).sum)
    var at = 0
    values.foreach { value =>
      val size = value.getSizeInBytes
      Platform.putInt(result, Platform.BYTE_ARRAY_OFFSET + at, Integer.reverseBytes(size))
      Platform.copyMemory(
        value.getBaseObject, value.getBaseOffset, result, Platform.BYTE_ARRAY_OFFSET + at + 4, size)
      at += 4 + size
    }
    result
  }

  private def first(base: Array[Byte], from: Int, length: Int): UnsafeRow =
    if (length == 0) null else decodeAll(base, from, length).next()
}

private[ckpt] object ValueCodec {
  private def readLength(base: Array[Byte], at: Int): Int =
    Integer.reverseBytes(Platform.getInt(base, Platform.BYTE_ARRAY_OFFSET + at))
}
