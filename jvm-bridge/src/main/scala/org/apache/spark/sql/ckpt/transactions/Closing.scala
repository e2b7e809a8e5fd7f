package org.apache.spark.sql.ckpt.transactions

import org.apache.spark.TaskContext

/** Lets the work of running tasks end before what it uses is closed. Spark may unload a store while tasks use it: when
  * another executor runs the same task, and in Spark 3.5 all stores of an executor when one maintenance has failed.
  */
private[ckpt] final class Closing {
  private var tasks = 0
  private var close: Option[() => Unit] = None

  /** Notes that a task uses it. Returns what ends that, to be called once. Other users are not waited for. */
  def enter(): () => Unit =
    if (TaskContext.get() == null) {
      Closing.NoTask
    } else {
      synchronized(tasks += 1)
      () => leave()
    }

  private def leave(): Unit = {
    val due = synchronized {
      tasks -= 1
      if (tasks == 0) takeClose() else None
    }
    due.foreach(_())
  }

  /** Runs `action` once, when no task is left, perhaps at once. */
  def whenEmpty(action: () => Unit): Unit = {
    val due = synchronized {
      close = Some(action)
      if (tasks == 0) takeClose() else None
    }
    due.foreach(_())
  }

  private def takeClose(): Option[() => Unit] = {
    val taken = close
    close = None
    taken
  }
}

private[ckpt] object Closing {
  private val NoTask = () => ()
}
