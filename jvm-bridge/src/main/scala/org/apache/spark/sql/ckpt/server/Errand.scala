package org.apache.spark.sql.ckpt
package server

/** Work that runs later in the background, or not at all. */
private[ckpt] final class Errand(work: () => Unit) extends Runnable {
  private var settled = false

  override def run(): Unit = synchronized {
    if (!settled) {
      settled = true
      work()
    }
  }

  /** Waits until the work is done; work that has not begun never runs. */
  def settle(): Unit = synchronized { settled = true }
}
