package org.apache.spark.sql.ckpt.plan.inputs

import java.io.{InputStream, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import org.apache.commons.io.IOUtils

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.minor.HDFSMetadataLog
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.sql.errors.QueryExecutionErrors

/** An input's own watermark, None before its first row, and the time of the last batch that had rows of it.
  *
  * Before its first row, `seenMs` is the time of the first batch that the input was there for.
  */
private[ckpt] final case class InputTimes(watermarkMs: Option[Long], seenMs: Long)

/** The files of a checkpoint with the times of a query's inputs, one for each batch.
  *
  * {{{
  * _ckpt/watermarks/<batch>   v1, then {"inputs": [{"column", "sources", "number", "watermarkMs", "seenMs"}, ...]}
  * }}}
  */
private[ckpt] final class InputTimesLog(session: SparkSession, path: String)
  extends HDFSMetadataLog[String](session, path) {

  /** The times after a batch, of the inputs that it had. Empty if the query then had no input that can be idle. Throws
    * FormatError.
    */
  def read(batch: Long, inputs: Seq[WatermarkInput]): Map[WatermarkInput, InputTimes] =
    get(batch).fold(Map.empty[WatermarkInput, InputTimes]) { content =>
      val version = content.linesIterator.take(1).mkString
      if (version.matches("v[0-9]+") && version != InputTimesLog.Version)
        throw CkptErrors.format(s"$path/$batch has version $version: another release of pyspark-ckpt has written it.")
      val logged =
        try parse(content)
        catch { case NonFatal(problem) => throw CkptErrors.format(s"$path/$batch is damaged: ${problem.getMessage}.") }
      inputs.flatMap(input => logged.get(input.name).map(input -> _)).toMap
    }

  /** Publishes the times after a batch, and deletes files older than Spark keeps its own. */
  def write(batch: Long, times: Map[WatermarkInput, InputTimes]): Unit = {
    if (!add(batch, format(times))) throw QueryExecutionErrors.concurrentStreamLogUpdate(batch)
    val kept = session.sessionState.conf.minBatchesToRetain
    if (kept < batch) purge(batch - kept)
  }

  private def format(times: Map[WatermarkInput, InputTimes]): String = {
    val json = Json.obj()
    val entries = json.putArray("inputs")
    times.foreach { case (WatermarkInput(_, name, _), each) =>
      val entry = entries.addObject().put("column", name.column).put("number", name.number)
      val sources = entry.putArray("sources")
      name.sources.foreach(sources.add(_))
      each.watermarkMs.fold(entry.putNull("watermarkMs"))(entry.put("watermarkMs", _)).put("seenMs", each.seenMs)
    }
    s"${InputTimesLog.Version}\n$json"
  }

  private def parse(content: String): Map[InputName, InputTimes] = {
    val lines = content.split("\n", 2)
    require(lines(0) == InputTimesLog.Version, s"its version is ${lines(0)}")
    Json.mapper.readTree(lines(1)).required("inputs").elements.asScala.map { entry =>
      val watermarkMs = Option(entry.required("watermarkMs")).filterNot(_.isNull).map(number)
      val sources = entry.required("sources").elements.asScala.map(_.textValue).toSeq
      InputName(entry.required("column").textValue, sources, number(entry.required("number")).toInt) ->
        InputTimes(watermarkMs, number(entry.required("seenMs")))
    }.toMap
  }

  private def number(node: JsonNode): Long = {
    require(node.isIntegralNumber, s"$node is not a whole number")
    node.longValue
  }

  override protected def serialize(content: String, out: OutputStream): Unit = out.write(content.getBytes(UTF_8))
  override protected def deserialize(in: InputStream): String = IOUtils.toString(in, UTF_8)
}

private[ckpt] object InputTimesLog {

  /** Below the query's checkpoint. Savepoints take it along (`checkpoints/query`). */
  final val Folder = "_ckpt/watermarks"

  private final val Version = "v1"
}
