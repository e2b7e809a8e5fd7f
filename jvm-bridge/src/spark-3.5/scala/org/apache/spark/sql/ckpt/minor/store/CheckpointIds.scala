package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.ckpt.minor.StateStoreWriter
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreConf}
import org.apache.spark.sql.internal.SQLConf

/** Commits have no ids before Spark 4.0, and Spark does not know which partitions have committed. */
private[ckpt] object CheckpointIds {
  def areUsed(conf: StateStoreConf): Boolean = false
  def committedPartitions(writer: StateStoreWriter, conf: SQLConf): Option[Set[Int]] = None
}

private[ckpt] trait ReportsCheckpointIds extends StateStore
