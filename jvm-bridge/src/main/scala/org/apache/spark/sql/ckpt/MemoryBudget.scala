package org.apache.spark.sql.ckpt

import java.util.concurrent.atomic.AtomicInteger

/** How one `memoryLimit` is split in this process: a half for near caches, a quarter for write sets, an eighth for the
  * readers' block cache and an eighth for the state server. Caches and write sets share theirs evenly.
  */
private[ckpt] final class MemoryBudget(val limitBytes: Long) {
  private val caches = new AtomicInteger
  private val writeSets = new AtomicInteger

  val blockCacheBytes: Long = limitBytes / 8
  val serverBytes: Long = limitBytes / 8

  /** Stores that are open in this process. */
  def stores: Int = math.max(1, caches.get)

  def bytesPerCache: Long = limitBytes / 2 / stores
  def bytesPerWriteSet: Long =
    math.max(MemoryBudget.SmallestWriteSet, limitBytes / 4 / math.max(1, writeSets.get))

  def cacheOpened(): Unit = caches.incrementAndGet()
  def cacheClosed(): Unit = caches.decrementAndGet()
  def writeSetOpened(): Unit = writeSets.incrementAndGet()
  def writeSetClosed(): Unit = writeSets.decrementAndGet()
}

private[ckpt] object MemoryBudget {
  private val SmallestWriteSet = 1L << 20
}
