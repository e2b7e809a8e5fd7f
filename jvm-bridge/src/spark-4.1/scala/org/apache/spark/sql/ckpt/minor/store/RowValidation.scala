package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId, StateStoreProvider}
import org.apache.spark.sql.types.StructType

private[ckpt] object RowValidation {

  /** Refuses a row that does not have the schema of its store. */
  def check(
      key: UnsafeRow, keySchema: StructType, value: UnsafeRow, valueSchema: StructType, id: StateStoreId,
      conf: StateStoreConf): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, id, conf)
}
