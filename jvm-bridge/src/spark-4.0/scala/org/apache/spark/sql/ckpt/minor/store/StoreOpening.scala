package org.apache.spark.sql.ckpt.minor.store

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.ckpt.minor.KeyStateEncoderSpec
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark lets the values of a family evolve, if it encodes them by Avro. */
private[ckpt] trait StoreOpening extends StateStoreProvider { this: ProviderOperations =>

  /** Spark has as many threads for maintenance as `numStateStoreMaintenanceThreads` says. */
  protected def sharesMaintenanceThread: Boolean = false

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    val evolution =
      stateSchemaProvider.filter(_ => storeConf.stateStoreEncodingFormat == StateStoreEncoding.Avro.toString)
    open(
      stateStoreId, keySchema, valueSchema, keyStateEncoderSpec, useColumnFamilies, storeConf, hadoopConf,
      useMultipleValuesPerKey,
      family => evolution.fold(Seq.empty[StructType])(schemas(_, family)))
  }

  private def schemas(provider: StateSchemaProvider, family: String): Seq[StructType] =
    (0 to provider.getCurrentStateSchemaId(family, isKey = false)).map { id =>
      provider.getSchemaMetadataValue(StateSchemaMetadataKey(family, id.toShort, isKey = false)).sqlSchema
    }
}
