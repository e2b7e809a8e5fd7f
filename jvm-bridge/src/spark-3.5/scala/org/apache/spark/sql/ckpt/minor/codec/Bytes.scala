package org.apache.spark.sql.ckpt.minor.codec

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/** Comparisons of arrays of bytes, or of parts of them, as `java.util.Arrays` has them from Java 9 on. */
private[ckpt] object Bytes {
  private final val Base = Platform.BYTE_ARRAY_OFFSET

  def areEqual(a: Array[Byte], aFrom: Int, aTo: Int, b: Array[Byte], bFrom: Int, bTo: Int): Boolean =
    aTo - aFrom == bTo - bFrom && ByteArrayMethods.arrayEquals(a, Base + aFrom, b, Base + bFrom, aTo - aFrom)

  /** How many bytes are the same; -1 if all are. */
  def mismatch(a: Array[Byte], aFrom: Int, aTo: Int, b: Array[Byte], bFrom: Int, bTo: Int): Int = {
    val (aLength, bLength) = (aTo - aFrom, bTo - bFrom)
    val both = math.min(aLength, bLength)
    var same = 0
    while (both - same >= 8 && word(a, aFrom + same) == word(b, bFrom + same)) same += 8
    while (same < both && a(aFrom + same) == b(bFrom + same)) same += 1
    if (same == aLength && same == bLength) -1 else same
  }

  def compareUnsigned(a: Array[Byte], b: Array[Byte]): Int = compareUnsigned(a, 0, a.length, b, 0, b.length)

  def compareUnsigned(a: Array[Byte], aFrom: Int, aTo: Int, b: Array[Byte], bFrom: Int, bTo: Int): Int = {
    val same = mismatch(a, aFrom, aTo, b, bFrom, bTo)
    if (same < 0 || aFrom + same == aTo || bFrom + same == bTo) (aTo - aFrom) - (bTo - bFrom)
    else (a(aFrom + same) & 0xff) - (b(bFrom + same) & 0xff)
  }

  private def word(bytes: Array[Byte], at: Int): Long = Platform.getLong(bytes, Base + at)
}
