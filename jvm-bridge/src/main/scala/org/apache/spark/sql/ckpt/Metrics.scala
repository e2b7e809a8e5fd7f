package org.apache.spark.sql.ckpt

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.execution.streaming.state._

/** The custom metrics of this provider, as they appear in `StreamingQueryProgress.stateOperators`. */
private[ckpt] object Metrics {
  private def sum(name: String, text: String) = StateStoreCustomSumMetric(name, s"ckpt: $text")
  private def size(name: String, text: String) = StateStoreCustomSizeMetric(name, s"ckpt: $text")
  private def time(name: String, text: String) = StateStoreCustomTimingMetric(name, s"ckpt: $text")

  val LoadTime = time("ckptLoadTimeMs", "time to make the base version readable, catch-up included")
  val Restores = sum("ckptRestores", "stores restored from the remote place")
  val ReplayedDeltas = sum("ckptReplayedDeltas", "deltas applied while restoring")
  val CacheHits = sum("ckptCacheHits", "reads answered by the near cache")
  val CacheMisses = sum("ckptCacheMisses", "reads answered by the database")
  val ExistenceReads = sum("ckptExistenceReads", "writes of keys that were not read before")
  val WrittenRows = sum("ckptWrittenRows", "rows written or removed by the commit")
  val ExpiredRows = sum("ckptExpiredRows", "rows removed as their time to live was over")
  val FiredTimers = sum("ckptFiredTimers", "timers that fired")
  val LateRows = sum("ckptLateRows", "rows that a keyed operator dropped as they were late")
  val SpilledRuns = sum("ckptSpilledRuns", "sorted runs that write sets spilled")
  val SealTime = time("ckptSealTimeMs", "time to sort and write the delta")
  val ServerTime = time("ckptServerTimeMs", "time the state server took to make the delta durable")
  val UploadTime = time("ckptUploadTimeMs", "time to upload the delta")
  val IngestTime = time("ckptIngestTimeMs", "time to ingest the delta before into the local database")
  val DeltaBytes = size("ckptDeltaBytes", "bytes of the delta object")
  val InternalRows = sum("ckptInternalRows", "rows of internal states, not counted in numRowsTotal")
  val CacheBytes = size("ckptCacheBytes", "bytes of near caches")
  val WriteSetBytes = size("ckptWriteSetBytes", "bytes of write sets at commit")

  private val counters = ConcurrentHashMap.newKeySet[String]

  /** A counter of a keyed operator. Spark asks for the names of metrics without saying for which query. */
  def declareCounter(name: String): Unit = counters.add(name)
  def counter(name: String): StateStoreCustomMetric = StateStoreCustomSumMetric(name, s"counter $name")
  def declared: Seq[StateStoreCustomMetric] = counters.asScala.toSeq.map(counter)

  /** Whether a number that the state server reports is that of a counter: all others have plain names. */
  def isCounter(name: String): Boolean = name.contains("/")

  val all: Seq[StateStoreCustomMetric] = Seq(
    LoadTime, Restores, ReplayedDeltas, CacheHits, CacheMisses, ExistenceReads, WrittenRows, ExpiredRows, FiredTimers,
    LateRows, SpilledRuns, SealTime, ServerTime, UploadTime, IngestTime, DeltaBytes, InternalRows, CacheBytes,
    WriteSetBytes)
}
