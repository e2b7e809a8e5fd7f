package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state.RocksDBStateEncoder
import org.apache.spark.sql.types.StructType

private[ckpt] object KeyEncoding {

  /** Spark's own encoder. */
  def encoder(spec: KeyStateEncoderSpec, valueSchema: StructType): RocksDBKeyStateEncoder = spec match {
    case NoPrefixKeyStateEncoderSpec(schema) => RocksDBStateEncoder.getEncoder(schema, valueSchema, 0)
    case PrefixKeyScanStateEncoderSpec(schema, columns) => RocksDBStateEncoder.getEncoder(schema, valueSchema, columns)
  }

  /** None: no key is kept in the order of some of its columns. */
  def orderedColumns(spec: KeyStateEncoderSpec): Option[Seq[Int]] = None
}
