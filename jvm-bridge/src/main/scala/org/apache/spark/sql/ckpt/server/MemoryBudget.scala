package org.apache.spark.sql.ckpt
package server

import java.util.concurrent.atomic.AtomicInteger

/** Splits one `memoryLimit` in this process: half for near caches, a quarter for write sets, an eighth for the readers'
  * block cache and an eighth for the state server. Caches share their part evenly, and so do write sets.
  */
private[ckpt] final class MemoryBudget(val limitBytes: Long) {
  private val caches = new AtomicInteger
  private val writeSets = new AtomicInteger

  val blockCacheBytes: Long = limitBytes / 8
  val serverBytes: Long = limitBytes / 8

  /** The number of stores that are open in this process. */
  def stores: Int = math.max(1, caches.get)

  def bytesPerCache: Long = limitBytes / 2 / stores
  def bytesPerWriteSet: Long =
    math.max(MemoryBudget.MinWriteSet, limitBytes / 4 / math.max(1, writeSets.get))

  /** The parts of this limit that do not fit into the heap, or into the memory outside it if that is limited. */
  def misfits(heapBytes: Long, overheadBytes: Option[Long]): Seq[String] = {
    def mib(bytes: Long): Long = bytes >> 20
    val onHeap = limitBytes / 4 * 3
    val besides = blockCacheBytes + serverBytes + MemoryBudget.ServerAtRest
    val heap = Option.when(onHeap > heapBytes / 2) {
      s"Near caches and write sets may take ${mib(onHeap)} MiB of a heap of ${mib(heapBytes)} MiB: " +
        "lower memoryLimit or raise the executor's memory."
    }
    val overhead = overheadBytes.filter(besides > _).map { bytes =>
      s"The readers' block cache and the state server may take ${mib(besides)} MiB, and " +
        s"spark.executor.memoryOverhead is ${mib(bytes)} MiB: lower memoryLimit or raise the overhead."
    }
    (heap ++ overhead).toSeq
  }

  def cacheOpened(): Unit = caches.incrementAndGet()
  def cacheClosed(): Unit = caches.decrementAndGet()
  def writeSetOpened(): Unit = writeSets.incrementAndGet()
  def writeSetClosed(): Unit = writeSets.decrementAndGet()
}

private[ckpt] object MemoryBudget {
  private val MinWriteSet = 1L << 20

  /** The memory of the state server's process before it has any state. */
  private val ServerAtRest = 100L << 20
}
