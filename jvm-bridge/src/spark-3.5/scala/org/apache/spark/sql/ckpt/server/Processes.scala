package org.apache.spark.sql.ckpt.server

import scala.util.Try

/** Processes in an API that Java 8 has. */
private[ckpt] object Processes {

  /** The number of a process, for messages. Java 8 does not know it. */
  def pid(process: Process): String =
    Try(classOf[Process].getMethod("pid").invoke(process).toString).getOrElse("unknown in Java 8")

  /** Ends a process, but none that it has started: Java 8 does not know them. A state server that a wrapper has started
    * ends when its stdin is closed.
    */
  def kill(process: Process): Unit = process.destroyForcibly()
}
