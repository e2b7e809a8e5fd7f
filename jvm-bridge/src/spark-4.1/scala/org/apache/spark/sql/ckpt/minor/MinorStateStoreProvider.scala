package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore, StateStoreProvider}

/** Spark's trait, with what providers have from a later release on. */
private[ckpt] trait MinorStateStoreProvider extends StateStoreProvider {
  def doSnapshotMaintenance(): Unit
  def doCleanupMaintenance(): Unit

  def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore

  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    getStore(version, stateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)

  def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, stateStoreCkptId: Option[String]): StateStore =
    upgradeReadStoreToWriteStore(readStore, version, stateStoreCkptId, forceSnapshotOnCommit = false)
}
