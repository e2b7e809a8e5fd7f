package org.apache.spark.sql.ckpt.settings

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

/** Splits one `memoryLimit` in this process by the shares in the table of options: near caches, write sets, the
  * readers' block cache and the state server. Stores of the memory backend take what they need of the part for near
  * caches, as long as there is some. Caches share the rest evenly. Write sets share their part evenly.
  *
  * Whatever the limit is, caches and write sets get no more than half of the heap, which has `heapBytes`. Thread-safe.
  */
private[ckpt] final class MemoryBudget(val limitBytes: Long, heapBytes: Long = Runtime.getRuntime.maxMemory) {
  import MemoryBudget._

  private val caches = new AtomicInteger
  private val writeSets = new AtomicInteger
  private val resident = new AtomicLong

  private val wantedOfHeap = part("nearCaches") + part("writeSets")
  private val partOfWanted = math.min(1, heapBytes * MaxHeapShare / wantedOfHeap)
  private val cachesBytes = (part("nearCaches") * partOfWanted).toLong
  private val writeSetsBytes = (part("writeSets") * partOfWanted).toLong
  val blockCacheBytes: Long = part("blockCache")

  private def part(name: String): Long = (limitBytes * shares.get(name).asDouble).toLong

  /** The number of stores that are open in this process. */
  def stores: Int = math.max(1, caches.get)

  def bytesPerCache: Long = (cachesBytes - resident.get) / stores

  /** Bytes that stores of the memory backend have taken. */
  def residentBytes: Long = resident.get

  /** The part of the limit that stores of the memory backend share. */
  def residentLimit: Long = cachesBytes

  /** Takes `bytes` for a store of the memory backend, or gives them back; false if there are not as many. */
  def hold(bytes: Long): Boolean = {
    def fits(held: Long) = bytes <= 0 || held + bytes <= cachesBytes
    fits(resident.getAndUpdate(held => if (fits(held)) held + bytes else held))
  }

  def bytesPerWriteSet: Long = math.max(MinWriteSet, writeSetsBytes / math.max(1, writeSets.get))

  /** What a store may keep of the rows it reads while another transaction has its near cache. */
  def minCacheBytes: Long = MinCache

  /** The parts of this limit that do not fit into the heap, or into the memory outside it if that is limited. */
  def misfits(overheadBytes: Option[Long]): Seq[String] = {
    def mib(bytes: Long): Long = bytes >> 20
    val besides = blockCacheBytes + part("stateServer") + ServerAtRest
    val heap = if (partOfWanted >= 1) None
    else Some {
      s"Near caches and write sets should have ${mib(wantedOfHeap)} MiB of a heap of ${mib(heapBytes)} MiB. They get " +
        s"${mib((heapBytes * MaxHeapShare).toLong)} MiB: lower memoryLimit or raise the executor's memory."
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
  private val shares = OptionTable.memory.get("shares")
  private val MinCache = OptionTable.memory.get("minCacheBytes").asLong
  private val MinWriteSet = OptionTable.memory.get("minWriteSetBytes").asLong
  private val MaxHeapShare = OptionTable.memory.get("maxHeapShare").asDouble

  /** The memory of the state server's process before it has any state. */
  private val ServerAtRest = OptionTable.memory.get("serverAtRestBytes").asLong
}
