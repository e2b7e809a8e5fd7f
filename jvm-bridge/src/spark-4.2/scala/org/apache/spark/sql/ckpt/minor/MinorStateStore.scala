package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark's trait, with what stores have from a later release on. */
private[ckpt] trait MinorStateStore extends StateStore {
  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit
}
