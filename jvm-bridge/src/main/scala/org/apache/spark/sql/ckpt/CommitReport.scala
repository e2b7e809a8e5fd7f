package org.apache.spark.sql.ckpt

import com.fasterxml.jackson.databind.JsonNode

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.execution.streaming.state._

/** Builds the metrics of a commit for Spark. Row counts are exact: those of the base version plus the changes. */
private[ckpt] object CommitReport {
  def metrics(
      id: StateStoreId,
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
      Metrics.CatchUpTime -> txn.reader.takeCatchUpMs(),
      Metrics.Restores -> begun.path("restored").asLong,
      Metrics.ReplayedDeltas -> begun.path("replayed_deltas").asLong,
      Metrics.DamagedCopies -> served.path("damaged_copies").asLong,
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
      Metrics.WriteRequests -> served.path("write_requests").asLong,
      Metrics.ReadRequests -> served.path("read_requests").asLong,
      Metrics.ListRequests -> served.path("list_requests").asLong,
      Metrics.DeleteRequests -> served.path("delete_requests").asLong,
      Metrics.UploadedBytes -> served.path("uploaded_bytes").asLong,
      Metrics.DownloadedBytes -> served.path("downloaded_bytes").asLong,
      Metrics.PlaceWait -> served.path("place_wait_ms").asLong,
      Metrics.SnapshotLag -> served.path("deltas_since_snapshot").asLong,
      Metrics.SnapshotLagBytes -> served.path("delta_bytes_since_snapshot").asLong,
      Metrics.ScrubbedObjects -> served.path("scrubbed_objects").asLong,
      Metrics.HealedObjects -> served.path("healed_objects").asLong,
      Metrics.DamagedObjects -> served.path("damaged_objects").asLong,
      Metrics.Tables -> served.path("tables").asLong,
      Metrics.TableBytes -> served.path("table_bytes").asLong,
      Metrics.InternalRows -> internal.map(_.path("rows").asLong).sum,
      Metrics.CacheBytes -> cacheBytes,
      Metrics.WriteSetBytes -> txn.writeSetBytes)
    val counters = served.fieldNames.asScala.filter(Metrics.isCounter).map(Metrics.counter(_)).toSeq
    StateStoreMetrics(
      external.map(_.path("rows").asLong).sum, cacheBytes + txn.writeSetBytes + blockCacheBytes,
      values ++ counters.map(counter => counter -> served.path(counter.name).asLong),
      forecast(id, served))
  }

  /** The metrics before a commit: the rows of the base version, and the memory in use. */
  def beforeCommit(txn: Transaction): StateStoreMetrics = {
    val states = txn.begun.states.elements.asScala.filterNot(_.path("descriptor").path("internal").asBoolean)
    StateStoreMetrics(states.map(_.path("rows").asLong).sum, txn.cacheBytes + txn.writeSetBytes, Map.empty, Map.empty)
  }

  /** Empty until the server has looked for snapshots: a server that continues with local copies does that later. */
  private def forecast(id: StateStoreId, served: JsonNode): Map[StateStoreInstanceMetric, Long] =
    Option(served.get("restore_forecast_ms")).map { milliseconds =>
      Metrics.RestoreForecast(Some(id.partitionId), id.storeName) -> milliseconds.asLong
    }.toMap
}
