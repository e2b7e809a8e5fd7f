package org.apache.spark.sql.ckpt.server

private[ckpt] object Processes {

  /** The number of a process, for messages. */
  def pid(process: Process): String = process.pid.toString

  /** Ends a process and those that it has started: the process may be a wrapper around Python. */
  def kill(process: Process): Unit = {
    val started = process.descendants.toList
    process.destroyForcibly()
    started.forEach(each => each.destroyForcibly(): Unit)
  }
}
