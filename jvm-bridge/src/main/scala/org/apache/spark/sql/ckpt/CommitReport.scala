package org.apache.spark.sql.ckpt

import com.fasterxml.jackson.databind.JsonNode

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreMetrics}

/** Puts together what a commit reports to Spark. Row counts are exact: those of the base version and the changes. */
private[ckpt] object CommitReport {
  def metrics(
      txn: Transaction,
      delta: Option[SealedDelta],
      answer: JsonNode,
      blockCacheBytes: Long,
      sealMs: Long,
      serverMs: Long): StateStoreMetrics = {
    val begun = txn.begun.metrics
    val cacheBytes = txn.cacheBytes
    val served = answer.path("metrics")
    val states = answer.path("states").elements.asScala.toSeq
    val (internal, external) = states.partition(_.path("descriptor").path("internal").asBoolean)
    val values = Map[StateStoreCustomMetric, Long](
      Metrics.LoadTime -> txn.loadMs,
      Metrics.Restores -> begun.path("restored").asLong,
      Metrics.ReplayedDeltas -> begun.path("replayed_deltas").asLong,
      Metrics.CacheHits -> txn.cacheHits,
      Metrics.CacheMisses -> txn.cacheMisses,
      Metrics.ExistenceReads -> txn.existenceReads,
      Metrics.WrittenRows -> (delta.fold(0L)(_.rows) + served.path("worker_rows").asLong),
      Metrics.ExpiredRows -> served.path("expired_rows").asLong,
      Metrics.FiredTimers -> served.path("fired_timers").asLong,
      Metrics.LateRows -> served.path("late_rows").asLong,
      Metrics.SpilledRuns -> txn.spilledRuns.toLong,
      Metrics.SealTime -> sealMs,
      Metrics.ServerTime -> serverMs,
      Metrics.UploadTime -> served.path("upload_ms").asLong,
      Metrics.IngestTime -> served.path("ingest_ms").asLong,
      Metrics.DeltaBytes -> served.path("delta_bytes").asLong,
      Metrics.InternalRows -> internal.map(_.path("rows").asLong).sum,
      Metrics.CacheBytes -> cacheBytes,
      Metrics.WriteSetBytes -> txn.writeSetBytes)
    val counters = served.fieldNames.asScala.filter(Metrics.isCounter).map(Metrics.counter(_)).toSeq
    StateStoreMetrics(
      external.map(_.path("rows").asLong).sum, cacheBytes + txn.writeSetBytes + blockCacheBytes,
      values ++ counters.map(counter => counter -> served.path(counter.name).asLong))
  }
}
