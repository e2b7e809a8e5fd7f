package org.apache.spark.sql.ckpt
package server

import java.io.{BufferedInputStream, IOException, InputStream}
import java.nio.charset.StandardCharsets.UTF_8

import scala.concurrent.duration.FiniteDuration
import scala.collection.mutable
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging

/** The lines of a stream, each of bounded length: the rest of a longer line is skipped, however long it is. */
private[ckpt] final class BoundedLines(stream: InputStream, mostBytes: Int) {
  private val in = new BufferedInputStream(stream)
  private var inLongLine = false

  /** The last bytes of the present line, after earlier bytes of it. */
  private val window = new Array[Byte](2 * mostBytes)
  private var filled = 0

  /** The next line; null at the end of the stream, or if it is broken. */
  def next(): String =
    try {
      if (inLongLine) skip()
      read()
    } catch { case _: IOException => null }

  /** The end of the line that `next` has truncated, which may begin before the cut; empty if it was complete. */
  def end(): String =
    try {
      if (inLongLine) {
        skip()
        val from = math.max(0, filled - mostBytes)
        new String(window, from, filled - from, UTF_8)
      } else ""
    } catch { case _: IOException => "" }

  private def read(): String = {
    filled = 0
    var byte = in.read()
    val atEnd = byte < 0
    while (byte >= 0 && byte != '\n' && filled < mostBytes) {
      keep(byte)
      byte = in.read()
    }
    inLongLine = byte >= 0 && byte != '\n'
    val line = new String(window, 0, filled, UTF_8)
    if (inLongLine) keep(byte)
    if (atEnd) null
    else if (inLongLine) line + s" ... (the rest of a line of more than $mostBytes bytes is left out)"
    else line.stripSuffix("\r")
  }

  private def skip(): Unit = {
    var byte = in.read()
    while (byte >= 0 && byte != '\n') {
      keep(byte)
      byte = in.read()
    }
    inLongLine = false
  }

  private def keep(byte: Int): Unit = {
    if (filled == window.length) {
      System.arraycopy(window, mostBytes, window, 0, mostBytes)
      filled = mostBytes
    }
    window(filled) = byte.toByte
    filled += 1
  }
}

private[ckpt] object BoundedLines {

  /** The maximum that the state server may write in one line: a message of 8192 characters, each as six of JSON. */
  val MaxBytes: Int = 64 << 10
}

/** Copies the server's log lines (one JSON object a line) into this JVM's log, with their level and store. */
private[ckpt] final class ServerLog(lines: BoundedLines, name: String) extends Thread(name) with Logging {
  private val tail = mutable.Queue.empty[String]
  setDaemon(true)

  /** The last lines, shortened; they contain the reason why a server has ended. */
  def last: Seq[String] = tail.synchronized(tail.toSeq)

  override def run(): Unit = {
    var line = lines.next()
    while (line != null) {
      try carry(line)
      catch { case NonFatal(failure) => logWarning("a line of the state server could not be logged", failure) }
      line = lines.next()
    }
  }

  private def carry(line: String): Unit = {
    val entry = if (line.startsWith("{")) Json.tryParse(line) else None
    entry match {
      case Some(json) =>
        val text = json.path("store").asText("") match {
          case "" => json.path("message").asText
          case store => s"[$store] ${json.path("message").asText}"
        }
        remember(text)
        json.path("level").asText match {
          case "ERROR" | "CRITICAL" => logError(text)
          case "WARNING" => logWarning(text)
          case "DEBUG" => logDebug(text)
          case _ => logInfo(text)
        }
      case None =>
        remember(line)
        logWarning(line)
    }
  }

  private def remember(text: String): Unit = tail.synchronized {
    if (text.nonEmpty) tail.enqueue(ServerLog.shorten(text))
    if (tail.size > ServerLog.Kept) tail.dequeue()
  }
}

private[ckpt] object ServerLog {
  private val Kept = 8
  private val MaxCharacters = 500

  def shorten(text: String): String = if (text.length <= MaxCharacters) text else text.take(MaxCharacters) + " ..."
}

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
