package org.apache.spark.sql.ckpt
package rows

/** Append-only bytes in slabs of growing size.
  *
  * A location stays valid as long as anybody holds the slab, and its bytes stay unchanged unless its owner overwrites
  * them: nothing is reused here. A location packs the slab number (high 32 bits) and the offset in it (low 32 bits).
  */
private[ckpt] final class Arena {
  private var slabs = new Array[Array[Byte]](4)
  private var count = 0
  private var used = 0
  private var allocated = 0L

  /** Bytes on the heap, including unused ends of slabs. */
  def bytes: Long = allocated

  def slab(location: Long): Array[Byte] = slabs((location >>> 32).toInt)

  def append(source: Array[Byte], from: Int, length: Int): Long = {
    val location = reserve(length)
    System.arraycopy(source, from, slab(location), location.toInt, length)
    location
  }

  /** Reserves `length` bytes; the caller fills `slab(location)` from `location.toInt` on. */
  def reserve(length: Int): Long = {
    if (count == 0 || slabs(count - 1).length - used < length) addSlab(length)
    val location = ((count - 1).toLong << 32) | used
    used += length
    location
  }

  private def addSlab(atLeast: Int): Unit = {
    if (count == slabs.length) slabs = java.util.Arrays.copyOf(slabs, count * 2)
    val size = math.max(atLeast, math.min(Arena.MaxSlab, Arena.MinSlab << math.min(count, 10)))
    slabs(count) = new Array[Byte](size)
    allocated += size
    count += 1
    used = 0
  }
}

private[ckpt] object Arena {
  private val MinSlab = 4 << 10
  private val MaxSlab = 1 << 20
}
