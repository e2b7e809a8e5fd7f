package org.apache.spark.sql.ckpt.minor.store

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.ckpt.minor.{NoPrefixKeyStateEncoderSpec, PrefixKeyScanStateEncoderSpec}
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId, StateStoreProvider}
import org.apache.spark.sql.types.StructType

/** A store has one family of rows, whose schemas do not change. */
private[ckpt] trait StoreOpening extends StateStoreProvider { this: ProviderOperations =>

  /** One thread maintains all stores of an executor, and must not wait for uploads. */
  protected def sharesMaintenanceThread: Boolean = true

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      numColsPrefixKey: Int,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration): Unit = {
    val encoder =
      if (numColsPrefixKey == 0) NoPrefixKeyStateEncoderSpec(keySchema)
      else PrefixKeyScanStateEncoderSpec(keySchema, numColsPrefixKey)
    open(
      stateStoreId, keySchema, valueSchema, encoder, useColumnFamilies = false, storeConfs, hadoopConf,
      useMultipleValuesPerKey = false, _ => Nil)
  }
}
