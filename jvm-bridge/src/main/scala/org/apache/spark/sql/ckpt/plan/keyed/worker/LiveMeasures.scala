package org.apache.spark.sql.ckpt.plan.keyed.worker

import org.apache.spark.sql.ckpt.minor.{StatefulOperatorCustomMetric, StatefulOperatorCustomSumMetric}
import org.apache.spark.sql.ckpt.settings.Metrics
import org.apache.spark.sql.execution.metric.SQLMetric

/** What a task of a keyed operator in real-time mode reports. `metric`: each of `LiveMeasures.declared` by its name. */
private[ckpt] final class LiveMeasures(metric: String => SQLMetric) {
  private val groups = metric(Metrics.LiveGroups)
  private val rows = Metrics.latencyNames.map(metric).toArray
  private val tickDelay = metric(Metrics.LiveTickDelay)

  /** The output of a group has been taken. `arrivals`: when each of its rows arrived, by `System.nanoTime`, in order.
    * `lateMs`: how late the group came.
    */
  def add(arrivals: Array[Long], lateMs: Long): Unit = {
    groups += 1
    tickDelay += lateMs
    val now = System.nanoTime()
    var place = LiveMeasures.Last
    arrivals.foreach { arrival => // each is no later than the next, so its latency is no smaller
      while (place > 0 && now - arrival <= LiveMeasures.LimitsNs(place - 1)) place -= 1
      rows(place) += 1
    }
  }
}

private[ckpt] object LiveMeasures {
  private val LimitsNs = Metrics.latenciesMs.map(_ * 1000000).toArray
  private val Last = LimitsNs.length

  val declared: Seq[StatefulOperatorCustomMetric] =
    Metrics.ofLive.map { case (name, text) => StatefulOperatorCustomSumMetric(name, text) }
}
