package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.streaming.StateOperatorProgress

private[ckpt] object OperatorProgress {

  /** The same progress of an operator with another name. */
  def named(progress: StateOperatorProgress, name: String): StateOperatorProgress =
    new StateOperatorProgress(
      name, progress.numRowsTotal, progress.numRowsUpdated, progress.allUpdatesTimeMs, progress.numRowsRemoved,
      progress.allRemovalsTimeMs, progress.commitTimeMs, progress.memoryUsedBytes, progress.numRowsDroppedByWatermark,
      progress.numShufflePartitions, progress.numStateStoreInstances, progress.customMetrics)
}
