package org.apache.spark.sql.ckpt.server

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.settings.Json

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
