package org.apache.spark.sql.ckpt.settings

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.execution.streaming.state._

/** The custom metrics of this provider, as they appear in `StreamingQueryProgress.stateOperators`. Their only table is
  * `metrics.json`, a resource of this jar.
  */
private[ckpt] object Metrics {
  final class Row private[Metrics] (row: JsonNode) {
    val name: String = row.get("name").asText
    val text: String = s"ckpt: ${row.get("text").asText}"
    val isMeasuredHere: Boolean = row.path("shim").asBoolean
    val isOfStore: Boolean = row.path("store").asBoolean
    private[Metrics] val isLive = row.path("live").asBoolean
    private[Metrics] val upToMs = row.path("up_to_ms").elements.asScala.map(_.asLong).toSeq
    private val (begin, commit) = (Json.text(row, "begin"), Json.text(row, "commit"))

    val metric: StateStoreCustomMetric = row.get("kind").asText match {
      case "sum" => StateStoreCustomSumMetric(name, text)
      case "size" => StateStoreCustomSizeMetric(name, text)
      case "time" => StateStoreCustomTimingMetric(name, text)
    }

    /** What the state server says; None if it knows nothing yet. */
    def served(begun: JsonNode, committed: JsonNode): Option[Long] =
      Option(if (begin != null) begun.get(begin) else if (commit != null) committed.get(commit) else null).map(_.asLong)
  }

  private val (live, others) =
    Json.resource("metrics.json").get("metrics").elements.asScala.map(new Row(_)).toSeq.partition(_.isLive)
  private val (ofStores, ofOperators) = others.partition(_.isOfStore)

  /** Up to how many ms a count of `LiveRows` goes, in ascending order; a last count is that of all other rows. */
  val latenciesMs: Seq[Long] = live.find(_.name == LiveRows).get.upToMs

  /** The metrics of a keyed operator in real-time mode: names and texts. */
  val ofLive: Seq[(String, String)] = live.flatMap { row =>
    if (row.upToMs.isEmpty) Seq(row.name -> row.text) else latencyNames.map(_ -> row.text)
  }
  final val LiveGroups = "ckptLiveGroups"
  final val LiveRows = "ckptLiveRows"
  final val LiveTickDelay = "ckptLiveTickDelayMs"

  /** The names of the counts of `LiveRows`. */
  def latencyNames: Seq[String] = latenciesMs.map(ms => s"$LiveRows.up_to_${ms}_ms") :+ s"$LiveRows.later"

  /** How long a restore of one store would take, in ms. Unknown until the server has looked for snapshots: a server that
    * continues with local copies does that later.
    */
  val forecast: Row = ofStores.head

  val all: Seq[StateStoreCustomMetric] = ofOperators.map(_.metric)

  private val measuredHere = ofOperators.filter(_.isMeasuredHere).map(_.name).toSet

  def apply(name: String): StateStoreCustomMetric = all.find(_.name == name).get

  /** The metrics of a commit from what was measured here, by name, and from the state server's answers. */
  def values(
      measured: Map[String, Long], begun: JsonNode, committed: JsonNode): Map[StateStoreCustomMetric, Long] = {
    if (measured.keySet != measuredHere) {
      throw new IllegalStateException(s"the shim measures $measured, and the table of metrics has $measuredHere")
    }
    val metrics = ofOperators.map { row =>
      row.metric -> (measured.getOrElse(row.name, 0L) + row.served(begun, committed).getOrElse(0L))
    }
    val counters = committed.fieldNames.asScala.filter(isCounter)
    (metrics ++ counters.map(name => counter(name) -> committed.get(name).asLong)).toMap
  }

  private val counters = ConcurrentHashMap.newKeySet[String]

  /** Declares a counter of a keyed operator. Spark asks for names of metrics without naming the query. */
  def declareCounter(name: String): Unit = counters.add(name)
  private def counter(name: String): StateStoreCustomMetric = StateStoreCustomSumMetric(name, s"counter $name")
  def declared: Seq[StateStoreCustomMetric] = counters.asScala.toSeq.map(counter)

  /** Whether a number that the state server reports belongs to a counter: only their names have a slash. */
  private def isCounter(name: String): Boolean = name.contains("/")
}
