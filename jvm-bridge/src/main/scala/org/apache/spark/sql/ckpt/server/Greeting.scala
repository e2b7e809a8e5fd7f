package org.apache.spark.sql.ckpt.server

import scala.collection.mutable
import scala.concurrent.duration.FiniteDuration

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.settings.Json

/** Waits for the hello of a state server: one line of JSON on its stdout. Lines before it, from a `sitecustomize` or a
  * wrapper around Python, are logged and skipped.
  */
private[ckpt] final class Greeting(lines: BoundedLines) extends Logging {
  private val noise = mutable.ArrayBuffer.empty[String]
  private var passedOver = 0L
  @volatile private var hello: Option[JsonNode] = None
  @volatile private var ended = false

  /** Waits for the hello; None if there is none within `timeout`, or if the stream ends. */
  def await(timeout: FiniteDuration): Option[JsonNode] = {
    val thread = new Thread(() => listen(), "ckpt-state-server-hello")
    thread.setDaemon(true)
    thread.start()
    thread.join(timeout.toMillis)
    hello
  }

  /** Whether the stream has ended without a hello. */
  def hasEnded: Boolean = ended

  /** The first lines that are not a hello, shortened. */
  def others: Seq[String] = noise.synchronized(noise.toSeq)

  private def listen(): Unit = {
    var line = lines.next()
    while (line != null && hello.isEmpty) {
      hello = Greeting.find(line)
      if (hello.isEmpty) {
        passOver(line)
        hello = Greeting.find(lines.end())
      }
      if (hello.isEmpty) line = lines.next()
    }
    ended = line == null
  }

  private def passOver(line: String): Unit = noise.synchronized {
    passedOver += 1
    if (noise.size < Greeting.Kept && line.trim.nonEmpty) {
      noise += ServerLog.shorten(line)
      logWarning(s"the Python of the state server writes to stdout before the server starts: ${noise.last}")
    } else if (passedOver == Greeting.Kept + 1) {
      logWarning("the Python of the state server writes more lines to stdout, which are not shown")
    }
  }
}

private[ckpt] object Greeting {
  private val Kept = 10
  private val Beginnings = Seq("{\"port\": ", "{\"error\": ")

  /** The hello in a line, which may begin with the end of other output. */
  def find(line: String): Option[JsonNode] =
    Beginnings.map(line.lastIndexOf(_)).filter(_ >= 0).sorted.view
      .flatMap(at => Json.tryParse(line.substring(at))).find(node => node.isObject && isHello(node))

  private def isHello(node: JsonNode): Boolean =
    (node.path("port").isInt && node.path("protocol").isInt) || node.path("error").path("kind").isTextual
}
