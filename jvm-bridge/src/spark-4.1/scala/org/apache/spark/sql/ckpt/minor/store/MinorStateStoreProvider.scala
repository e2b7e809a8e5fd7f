package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore, StateStoreProvider}

/** Spark asks for no snapshot; it reports metrics of single stores. */
private[ckpt] trait MinorStateStoreProvider
  extends ProviderOperations with StateStoreProvider with StoreOpening with InstanceMetrics with ReadStores {
  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    getStore(version, stateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, stateStoreCkptId: Option[String]): StateStore =
    upgradeReadStoreToWriteStore(readStore, version, stateStoreCkptId, forceSnapshotOnCommit = false)
}
