package org.apache.spark.sql.ckpt

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.execution.streaming.state._

/** The custom metrics of this provider, as they appear in `StreamingQueryProgress.stateOperators`. */
private[ckpt] object Metrics {
  private def sum(name: String, text: String) = StateStoreCustomSumMetric(name, s"ckpt: $text")
  private def size(name: String, text: String) = StateStoreCustomSizeMetric(name, s"ckpt: $text")
  private def time(name: String, text: String) = StateStoreCustomTimingMetric(name, s"ckpt: $text")

  val LoadTime = time("ckptLoadTimeMs", "time to make the base version readable, catch-up included")
  val CatchUpTime = time("ckptCatchUpTimeMs", "time in which views of local databases caught up")
  val Restores = sum("ckptRestores", "stores restored from the remote place")
  val ReplayedDeltas = sum("ckptReplayedDeltas", "deltas applied while restoring")
  val DamagedCopies = sum("ckptDamagedCopies", "local copies that were discarded as damaged")
  val CacheHits = sum("ckptCacheHits", "reads answered by the near cache")
  val CacheMisses = sum("ckptCacheMisses", "reads answered by the database")
  val ExistenceReads = sum("ckptExistenceReads", "writes of keys that were not read before")
  val WrittenRows = sum("ckptWrittenRows", "rows written or removed by the commit")
  val ExpiredRows = sum("ckptExpiredRows", "rows removed because their time to live was over")
  val FiredTimers = sum("ckptFiredTimers", "timers that fired")
  val LateRows = sum("ckptLateRows", "rows that a keyed operator dropped because they were late")
  val SpilledRuns = sum("ckptSpilledRuns", "sorted runs that write sets spilled")
  val SealTime = time("ckptSealTimeMs", "time to sort and write the delta")
  val ServerTime = time("ckptServerTimeMs", "time the state server took to make the delta durable")
  val UploadTime = time("ckptUploadTimeMs", "time to upload the delta")
  val IngestTime = time("ckptIngestTimeMs", "time to ingest the previous delta into the local database")
  val WriteRequests = sum("ckptWriteRequests", "objects written to the place of state")
  val ReadRequests = sum("ckptReadRequests", "objects, or ranges of them, read from the place of state")
  val ListRequests = sum("ckptListRequests", "listings of the place of state")
  val DeleteRequests = sum("ckptDeleteRequests", "objects deleted in the place of state")
  val UploadedBytes = size("ckptUploadedBytes", "bytes written to the place of state")
  val DownloadedBytes = size("ckptDownloadedBytes", "bytes read from the place of state")
  val PlaceWait = time("ckptPlaceWaitTimeMs", "time of requests that were repeated because a place did not answer")
  val SnapshotLag = sum("ckptDeltasSinceSnapshot", "deltas since the newest snapshots")
  val SnapshotLagBytes = size("ckptDeltaBytesSinceSnapshot", "bytes of deltas since the newest snapshots")
  val ScrubbedObjects = sum("ckptScrubbedObjects", "stored objects that were read again")
  val HealedObjects = sum("ckptHealedObjects", "damaged stored objects that were written again from a local copy")
  val DamagedObjects = sum("ckptDamagedObjects", "stored objects that are damaged and could not be written again")
  val Tables = sum("ckptTableFiles", "table files of the local databases")
  val TableBytes = size("ckptTableBytes", "bytes of table files of the local databases")
  val DeltaBytes = size("ckptDeltaBytes", "bytes of the delta object")
  val InternalRows = sum("ckptInternalRows", "rows of internal states, not counted in numRowsTotal")
  val CacheBytes = size("ckptCacheBytes", "bytes of near caches")
  val WriteSetBytes = size("ckptWriteSetBytes", "bytes of write sets at commit")

  private val counters = ConcurrentHashMap.newKeySet[String]

  /** Declares a counter of a keyed operator. Spark asks for names of metrics without naming the query. */
  def declareCounter(name: String): Unit = counters.add(name)
  def counter(name: String): StateStoreCustomMetric = StateStoreCustomSumMetric(name, s"counter $name")
  def declared: Seq[StateStoreCustomMetric] = counters.asScala.toSeq.map(counter)

  /** Whether a number that the state server reports belongs to a counter: only their names have a slash. */
  def isCounter(name: String): Boolean = name.contains("/")

  val all: Seq[StateStoreCustomMetric] = Seq(
    LoadTime, CatchUpTime, Restores, ReplayedDeltas, DamagedCopies, CacheHits, CacheMisses, ExistenceReads, WrittenRows,
    ExpiredRows, FiredTimers, LateRows, SpilledRuns, SealTime, ServerTime, UploadTime, IngestTime, DeltaBytes,
    WriteRequests, ReadRequests, ListRequests, DeleteRequests, UploadedBytes, DownloadedBytes, PlaceWait, SnapshotLag,
    SnapshotLagBytes, ScrubbedObjects, HealedObjects, DamagedObjects, Tables, TableBytes, InternalRows, CacheBytes,
    WriteSetBytes)

  /** The forecast for one store. Spark shows the largest, as `ckptRestoreForecastMs.partition_<number>_<store>`. */
  final case class RestoreForecast(
      partitionId: Option[Int] = None,
      storeName: String = StateStoreId.DEFAULT_STORE_NAME) extends StateStoreInstanceMetric {
    override def metricPrefix: String = "ckptRestoreForecastMs"
    override def descPrefix: String = "ckpt: predicted time of a restore"
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
