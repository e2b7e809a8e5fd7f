package org.apache.spark.sql.ckpt.changes

import org.apache.spark.sql.execution.streaming.state.{StateStore, SupportsFineGrainedReplay}
import org.apache.spark.util.NextIterator

/** Spark does not say which of several commits of a version it means. */
private[ckpt] trait MinorFineGrainedReplay extends ReplayOperations with SupportsFineGrainedReplay {
  override def replayStateFromSnapshot(snapshotVersion: Long, endVersion: Long): StateStore =
    replayStateFromSnapshot(snapshotVersion, endVersion, readOnly = false, None, None)

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String]): NextIterator[ChangeReader.Change] =
    getStateStoreChangeDataReader(startVersion, endVersion, colFamilyNameOpt, None)
}
