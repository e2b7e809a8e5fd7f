package org.apache.spark.sql.ckpt.minor

/** No key of this release has an event time in it, and there are no ranges of keys. */
private[ckpt] object KeyEncoders {
  def isOfEventTime(spec: KeyStateEncoderSpec): Boolean = false

  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean = false

  def isOfExpiry(family: String): Boolean = false
}
