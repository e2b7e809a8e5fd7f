package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId, StateStoreMetrics}

/** Spark has no metrics of single stores before 4.1, so it shows no forecast of a restore. */
private[ckpt] object InstanceMetrics {
  def metrics(
      id: StateStoreId, rows: Long, memoryBytes: Long, custom: Map[StateStoreCustomMetric, Long],
      forecastMs: Option[Long]): StateStoreMetrics = StateStoreMetrics(rows, memoryBytes, custom)
}
