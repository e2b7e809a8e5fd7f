package org.apache.spark.sql.ckpt.server

/** Work that runs later in the background, or not at all. */
private[ckpt] final class CancellableTask(work: () => Unit) extends Runnable {
  private var isOver = false

  override def run(): Unit = synchronized {
    if (!isOver) {
      isOver = true
      work()
    }
  }

  /** Waits until the work is done; work that has not begun never runs. */
  def cancelOrAwait(): Unit = synchronized { isOver = true }
}
