package org.apache.spark.sql.ckpt
package server

/** Work that is done behind, or not at all. */
private[ckpt] final class Errand(work: () => Unit) extends Runnable {
  private var settled = false

  override def run(): Unit = synchronized {
    if (!settled) {
      settled = true
      work()
    }
  }

  /** Returns when the work is done; work that has not begun will never be. */
  def settle(): Unit = synchronized { settled = true }
}
