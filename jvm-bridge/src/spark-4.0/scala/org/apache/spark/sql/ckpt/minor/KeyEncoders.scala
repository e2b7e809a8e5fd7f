package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state._

private[ckpt] object KeyEncoders {

  /** No key of this release has an event time in it. */
  def isOfEventTime(spec: KeyStateEncoderSpec): Boolean = false

  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean = encoder.isInstanceOf[RangeKeyScanStateEncoder]

  /** Whether a column family of transformWithState has the times at which another one's rows expire. */
  def isOfExpiry(family: String): Boolean = family.startsWith(Expiry)

  /** What StateStoreColumnFamilySchemaUtils.getTtlColFamilyName puts in front of a state's name. */
  private final val Expiry = "$ttl_"
}
