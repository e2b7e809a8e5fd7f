package org.apache.spark.sql.ckpt.settings

import java.util.Base64

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.ckpt.CkptException

/** JSON as this package uses it. */
private[ckpt] object Json {
  val mapper = new ObjectMapper

  def obj(): ObjectNode = mapper.createObjectNode()

  def strings(values: Map[String, String]): ObjectNode = {
    val node = obj()
    values.foreach { case (key, value) => node.put(key, value) }
    node
  }

  def bytes(node: JsonNode, field: String): Array[Byte] =
    if (node.hasNonNull(field)) Base64.getDecoder.decode(node.get(field).asText) else null

  def text(node: JsonNode, field: String): String = if (node.hasNonNull(field)) node.get(field).asText else null

  /** A table of this jar. */
  def resource(name: String): JsonNode = {
    val stream = getClass.getResourceAsStream(s"/pyspark_ckpt/$name")
    try mapper.readTree(stream)
    finally stream.close()
  }

  def tryParse(line: String): Option[JsonNode] =
    try Some(mapper.readTree(line))
    catch { case _: com.fasterxml.jackson.core.JsonProcessingException => None }

  def error(node: JsonNode): CkptException = new CkptException(
    node.path("kind").asText("InternalError"), node.path("message").asText, node.path("hint").asText(""),
    node.path("retryable").asBoolean(false), null)
}
