package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.StateStoreColumnFamilySchemaUtils
import org.apache.spark.sql.execution.streaming.state._

private[ckpt] object KeyEncoders {

  /** Whether a key's last column is an event time, and Spark scans the keys in their order. */
  def isOfEventTime(spec: KeyStateEncoderSpec): Boolean = spec match {
    case _: TimestampAsPrefixKeyStateEncoderSpec | _: TimestampAsPostfixKeyStateEncoderSpec => true
    case _ => false
  }

  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean = encoder.supportsRangeScan

  /** Whether a column family of transformWithState has the times at which another one's rows expire. */
  def isOfExpiry(family: String): Boolean = StateStoreColumnFamilySchemaUtils.isTtlColFamilyName(family)
}
