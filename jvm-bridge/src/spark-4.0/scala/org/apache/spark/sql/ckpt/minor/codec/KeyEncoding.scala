package org.apache.spark.sql.ckpt.minor.codec

import org.apache.spark.sql.ckpt.minor.{KeyStateEncoderSpec, RocksDBKeyStateEncoder}
import org.apache.spark.sql.execution.streaming.state.{
  RangeKeyScanStateEncoder,
  RangeKeyScanStateEncoderSpec,
  UnsafeRowDataEncoder
}
import org.apache.spark.sql.types.StructType

private[ckpt] object KeyEncoding {

  /** Spark's own encoder. */
  def encoder(spec: KeyStateEncoderSpec, valueSchema: StructType): RocksDBKeyStateEncoder =
    spec.toEncoder(new UnsafeRowDataEncoder(spec, valueSchema), false)

  /** The columns in whose order Spark scans such keys; None if there are none. */
  def orderedColumns(spec: KeyStateEncoderSpec): Option[Seq[Int]] = spec match {
    case RangeKeyScanStateEncoderSpec(_, columns) => Some(columns)
    case _ => None
  }

  /** No key of this release has an event time in it. */
  def isOfEventTime(spec: KeyStateEncoderSpec): Boolean = false

  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean = encoder.isInstanceOf[RangeKeyScanStateEncoder]
}
