package org.apache.spark.sql.ckpt.transactions

import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Path, Paths}

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.ckpt.server.StateServer
import org.apache.spark.sql.ckpt.settings.Json

/** The state server's answer to `begin` of an `opened` store; the transaction exists only in that `server`. */
private[ckpt] final class Begun(val opened: ServedStore.Opened, answer: JsonNode) {
  val server: StateServer = opened.server
  val number: Long = answer.get("txn").asLong
  val version: Long = answer.get("version").asLong
  val id: Option[String] = Option(Json.text(answer, "id"))
  val path: String = answer.get("db").asText
  val live: Boolean = answer.get("live").asBoolean
  val staging: Path = Paths.get(answer.get("staging").asText)
  val markerKey: Array[Byte] = Json.bytes(answer, "marker_key")
  val markerValue: Array[Byte] = Json.bytes(answer, "marker_value")
  val nextMarkerValue: Array[Byte] = Json.bytes(answer, "next_marker_value")
  val partitions: Option[Int] =
    if (answer.hasNonNull("num_partitions")) Some(answer.get("num_partitions").asInt) else None
  val states: JsonNode = answer.get("states")
  val metrics: JsonNode = answer.path("metrics")

  /** The version and its commit, which identify what a view or a cache shows. */
  def tag: String = Begun.tagOf(markerValue)
  def nextTag: String = Begun.tagOf(nextMarkerValue)
}

private[ckpt] object Begun {
  private def tagOf(marker: Array[Byte]): String = if (marker == null) "" else new String(marker, ISO_8859_1)
}
