package org.apache.spark.sql.ckpt.plan

import java.io.ByteArrayOutputStream
import java.nio.charset.StandardCharsets.UTF_8
import java.util.Base64
import java.util.zip.GZIPOutputStream

import org.json4s.JsonAST.{JObject, JValue}
import org.json4s.jackson.JsonMethods

import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/** What the export of metrics implements in Python. */
private[ckpt] trait PythonEvents {
  def onQueryStarted(event: QueryStartedEvent): Unit

  /** `text`: see `EventTeller.textOf`. `tookNs`: the time that it took to write it. */
  def onQueryProgress(text: String, tookNs: Long): Unit
  def onQueryTerminated(event: QueryTerminatedEvent): Unit
}

/** Tells Python of events. Unlike with Spark's own listener for Python, it need not ask back for the progress. */
private[ckpt] final class EventTeller(python: PythonEvents) extends StreamingQueryListener {

  /** Spark calls this on the query's own thread, which is interrupted if the query is stopped now. A listener in which
    * Spark finds a thread interrupted is removed, and would hear of no other query. The query ends anyway.
    */
  override def onQueryStarted(event: QueryStartedEvent): Unit =
    try python.onQueryStarted(event)
    finally {
      Thread.interrupted()
    }

  override def onQueryTerminated(event: QueryTerminatedEvent): Unit = python.onQueryTerminated(event)

  override def onQueryProgress(event: QueryProgressEvent): Unit = {
    val started = System.nanoTime
    val text = EventTeller.textOf(event.progress.jsonValue)
    python.onQueryProgress(text, System.nanoTime - started)
  }
}

private[ckpt] object EventTeller {
  private final val MaxPlainBytes = 8000
  private val NotExported = Set("sources", "sink", "observedMetrics")

  /** The JSON of a progress without what is not exported. If it is long, it is compressed by gzip, in Base64: py4j writes
    * a text in portions of 8 KiB, and TCP keeps the second one back until the first is acknowledged, which takes 40 ms.
    */
  def textOf(progress: JValue): String = {
    val exported = progress match {
      case JObject(fields) => JObject(fields.filterNot(field => NotExported(field._1)))
      case other => other
    }
    val text = JsonMethods.compact(exported).getBytes(UTF_8)
    if (text.length <= MaxPlainBytes) new String(text, UTF_8) else Base64.getEncoder.encodeToString(compress(text))
  }

  private def compress(bytes: Array[Byte]): Array[Byte] = {
    val compressed = new ByteArrayOutputStream
    val out = new GZIPOutputStream(compressed)
    try out.write(bytes)
    finally out.close()
    compressed.toByteArray
  }
}
