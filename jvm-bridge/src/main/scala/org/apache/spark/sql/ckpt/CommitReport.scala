package org.apache.spark.sql.ckpt

import com.fasterxml.jackson.databind.JsonNode

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.ckpt.minor.InstanceMetrics
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, StateStoreMetrics}

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
      "ckptInternalRows" -> internal.map(_.path("rows").asLong).sum,
      "ckptCacheBytes" -> cacheBytes,
      "ckptMemoryBytes" -> txn.residentBytes,
      "ckptMemoryFallbacks" -> (if (txn.fellBack) 1L else 0L),
      "ckptWriteSetBytes" -> txn.writeSetBytes)
    InstanceMetrics.metrics(
      id, external.map(_.path("rows").asLong).sum, cacheBytes + txn.writeSetBytes + blockCacheBytes,
      Metrics.values(measured, begun, served), Metrics.forecast.served(begun, served))
  }

  /** The metrics before a commit: the rows of the base version, and the memory in use. */
  def beforeCommit(id: StateStoreId, txn: Transaction): StateStoreMetrics = {
    val states = txn.begun.states.elements.asScala.filterNot(_.path("descriptor").path("internal").asBoolean)
    InstanceMetrics.metrics(
      id, states.map(_.path("rows").asLong).sum, txn.cacheBytes + txn.writeSetBytes, Map.empty, None)
  }
}
