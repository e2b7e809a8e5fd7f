package org.apache.spark.sql.ckpt.transactions

import com.fasterxml.jackson.databind.JsonNode

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.ckpt.minor.store.InstanceMetrics
import org.apache.spark.sql.ckpt.settings.Metrics
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, StateStoreMetrics}

/** Builds the metrics of a commit for Spark. Row counts are exact: those of the base version plus the changes. */
private[ckpt] object CommitReport {

  /** What the Python workers of an operator have written: rows put, and rows removed. */
  final case class WorkerRows(put: Long, removed: Long)

  def workerRows(answer: JsonNode): WorkerRows = {
    val served = answer.path("metrics")
    WorkerRows(served.path("updated_rows").asLong, served.path("removed_rows").asLong)
  }

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
    val (counted, others) = divide(answer.path("states"))
    val measured = Map(
      "ckptLoadTimeMs" -> txn.loadMs,
      "ckptCatchUpTimeMs" -> txn.takeCatchUpMs(),
      "ckptCacheHits" -> txn.cacheHits,
      "ckptCacheMisses" -> txn.cacheMisses,
      "ckptExistenceReads" -> txn.existenceReads,
      "ckptWrittenRows" -> delta.fold(0L)(_.rows),
      "ckptSpilledRuns" -> txn.spilledRuns.toLong,
      "ckptSealTimeMs" -> sealMs,
      "ckptServerTimeMs" -> serverMs,
      "ckptInternalRows" -> rowsOf(others),
      "ckptCacheBytes" -> cacheBytes,
      "ckptMemoryBytes" -> txn.residentBytes,
      "ckptMemoryFallbacks" -> (if (txn.fellBack) 1L else 0L),
      "ckptWriteSetBytes" -> txn.writeSetBytes)
    InstanceMetrics.metrics(
      id, rowsOf(counted), cacheBytes + txn.writeSetBytes + blockCacheBytes,
      Metrics.values(measured, begun, served), Metrics.forecast.served(begun, served))
  }

  /** The metrics before a commit: the rows of the base version, and the memory in use. */
  def beforeCommit(id: StateStoreId, txn: Transaction): StateStoreMetrics =
    InstanceMetrics.metrics(
      id, rowsOf(divide(txn.begun.states)._1), txn.cacheBytes + txn.writeSetBytes, Map.empty, None)

  /** Divides states into those whose rows users count and others.
    *
    * Users of a keyed operator count the rows of its states, not the row with its time-out. Users of a function on groups
    * count groups, as on any provider, not the rows of states that the function has in addition.
    */
  private def divide(states: JsonNode): (Seq[JsonNode], Seq[JsonNode]) = {
    val all = states.elements.asScala.toSeq
    val ofPython = all.filter(encoder(_).has("keyed"))
    val isKeyedOperator = ofPython.exists(encoder(_).path("partition").asText != PlacedBySpark)
    all.partition { state =>
      !state.path("descriptor").path("internal").asBoolean &&
      (if (isKeyedOperator) encoder(state).has("keyed") else !encoder(state).has("keyed"))
    }
  }

  private def encoder(state: JsonNode): JsonNode = state.path("descriptor").path("key_encoder")
  private def rowsOf(states: Seq[JsonNode]): Long = states.map(_.path("rows").asLong).sum

  /** How the states of `with_states` are placed (`PLACEMENT` of the Python side). */
  private final val PlacedBySpark = "spark hash"
}
