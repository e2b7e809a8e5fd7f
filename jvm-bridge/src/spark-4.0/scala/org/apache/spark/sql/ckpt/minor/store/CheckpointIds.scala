package org.apache.spark.sql.ckpt.minor.store

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.ckpt.minor.StateStoreWriter
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreCheckpointInfo, StateStoreConf}
import org.apache.spark.sql.internal.SQLConf

/** The ids that the commits of stores have in checkpoint format 2. */
private[ckpt] object CheckpointIds {
  def areUsed(conf: StateStoreConf): Boolean = conf.enableStateStoreCheckpointIds

  /** The partitions that have committed in the last batch; None if Spark does not know it. */
  def committedPartitions(writer: StateStoreWriter, conf: SQLConf): Option[Set[Int]] =
    if (conf.getConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION) < 2) None
    else Some(writer.checkpointInfoAccumulator.value.asScala.map(_.partitionId).toSet)
}

private[ckpt] trait ReportsCheckpointIds extends StateStore {

  /** The ids of the commit and of its base; each None without ids. Fails before the commit. */
  protected def committedIds: (Option[String], Option[String])

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    val (own, base) = committedIds
    StateStoreCheckpointInfo(id.partitionId, version + 1, own, base)
  }
}
