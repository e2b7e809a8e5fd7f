package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.SparkContext
import org.apache.spark.sql.ckpt.settings.Metrics
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.execution.streaming.state._

/** Metrics that Spark shows for single stores. */
private[ckpt] trait InstanceMetrics extends StateStoreProvider {
  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] = Seq(InstanceMetrics.RestoreForecast())
}

private[ckpt] object InstanceMetrics {

  /** `forecastMs`: how long a restore of the store would take, once it is known. */
  def metrics(
      id: StateStoreId, rows: Long, memoryBytes: Long, custom: Map[StateStoreCustomMetric, Long],
      forecastMs: Option[Long]): StateStoreMetrics =
    StateStoreMetrics(
      rows, memoryBytes, custom, forecastMs.map(RestoreForecast(Some(id.partitionId), id.storeName) -> _).toMap)

  /** The forecast for one store. Spark shows the largest, as `ckptRestoreForecastMs.partition_<number>_<store>`. */
  final case class RestoreForecast(
      partitionId: Option[Int] = None,
      storeName: String = StateStoreId.DEFAULT_STORE_NAME) extends StateStoreInstanceMetric {
    override def metricPrefix: String = Metrics.forecast.name
    override def descPrefix: String = Metrics.forecast.text
    override def initValue: Long = -1
    override def ignoreIfUnchanged: Boolean = true
    override def ordering: Ordering[Long] = Ordering.Long.reverse
    override def combine(metric: SQLMetric, value: Long): Long = math.max(metric.value, value)
    override def createSQLMetric(context: SparkContext): SQLMetric =
      SQLMetrics.createTimingMetric(context, desc, initValue)
    override def withNewId(partition: Int, store: String): StateStoreInstanceMetric =
      copy(Some(partition), store)
  }
}
