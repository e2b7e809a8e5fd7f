package org.apache.spark.sql.ckpt

import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.TaskContext

/** Lets the work of running tasks end before what it uses is closed. Spark may unload a store while tasks use it: when
  * another executor runs the same task, and in Spark 3.5 all stores of an executor when one maintenance has failed.
  */
private[ckpt] final class Closing {
  private var tasks = 0
  private var close: Option[() => Unit] = None

  /** Notes that a task uses it. Returns what ends that; a second call does nothing. Other users are not waited for. */
  def enter(): () => Unit =
    if (TaskContext.get() == null) { () =>
      ()
    } else {
      synchronized(tasks += 1)
      val isOver = new AtomicBoolean
      () => if (isOver.compareAndSet(false, true)) leave()
    }

  private def leave(): Unit = {
    val due = synchronized {
      tasks -= 1
      close.filter(_ => tasks == 0)
    }
    due.foreach(_())
  }

  /** Runs `action` when no task is left, perhaps at once. Must be called only once. */
  def whenEmpty(action: () => Unit): Unit = {
    val isEmpty = synchronized {
      close = Some(action)
      tasks == 0
    }
    if (isEmpty) action()
  }
}
