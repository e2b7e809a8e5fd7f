package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Spark's trait, with what providers have from a later release on. */
private[ckpt] trait MinorStateStoreProvider extends StateStoreProvider {
  def doSnapshotMaintenance(): Unit
  def doCleanupMaintenance(): Unit
}
