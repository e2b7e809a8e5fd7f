package org.apache.spark.sql.ckpt.minor.store

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.ckpt.minor.KeyStateEncoderSpec
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore, StateStoreConf, StateStoreId}
import org.apache.spark.sql.types.StructType

/** What the newest release of Spark asks of a provider. Earlier ones ask for less, or in another form.
  *
  * Spark's own trait comes after this one in a list of parents: it has the default arguments.
  */
private[ckpt] trait ProviderOperations {

  /** Called first. `evolution`: the schemas that values of a family have had; none if they may not change. */
  protected def open(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      evolution: String => Seq[StructType]): Unit

  def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore

  def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore

  def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore

  def doSnapshotMaintenance(): Unit
  def doCleanupMaintenance(): Unit
}
