package org.apache.spark.sql.ckpt.minor.codec

import org.apache.spark.sql.ckpt.minor.{
  KeyStateEncoderSpec,
  NoPrefixKeyStateEncoderSpec,
  PrefixKeyScanStateEncoderSpec,
  RocksDBKeyStateEncoder
}
import org.apache.spark.sql.execution.streaming.state.RocksDBStateEncoder
import org.apache.spark.sql.types.StructType

/** No key of this release has an event time in it, and there are no ranges of keys. */
private[ckpt] object KeyEncoding {

  /** Spark's own encoder. */
  def encoder(spec: KeyStateEncoderSpec, valueSchema: StructType): RocksDBKeyStateEncoder = spec match {
    case NoPrefixKeyStateEncoderSpec(schema) => RocksDBStateEncoder.getEncoder(schema, valueSchema, 0)
    case PrefixKeyScanStateEncoderSpec(schema, columns) => RocksDBStateEncoder.getEncoder(schema, valueSchema, columns)
  }

  def orderedColumns(spec: KeyStateEncoderSpec): Option[Seq[Int]] = None

  def isOfEventTime(spec: KeyStateEncoderSpec): Boolean = false

  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean = false
}
