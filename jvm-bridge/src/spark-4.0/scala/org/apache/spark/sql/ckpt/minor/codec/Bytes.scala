package org.apache.spark.sql.ckpt.minor.codec

import java.util.Arrays

/** Comparisons of arrays of bytes, or of parts of them. */
private[ckpt] object Bytes {
  def areEqual(a: Array[Byte], aFrom: Int, aTo: Int, b: Array[Byte], bFrom: Int, bTo: Int): Boolean =
    Arrays.equals(a, aFrom, aTo, b, bFrom, bTo)

  /** How many bytes are the same; -1 if all are. */
  def mismatch(a: Array[Byte], aFrom: Int, aTo: Int, b: Array[Byte], bFrom: Int, bTo: Int): Int =
    Arrays.mismatch(a, aFrom, aTo, b, bFrom, bTo)

  def compareUnsigned(a: Array[Byte], b: Array[Byte]): Int = Arrays.compareUnsigned(a, b)

  def compareUnsigned(a: Array[Byte], aFrom: Int, aTo: Int, b: Array[Byte], bFrom: Int, bTo: Int): Int =
    Arrays.compareUnsigned(a, aFrom, aTo, b, bFrom, bTo)
}
