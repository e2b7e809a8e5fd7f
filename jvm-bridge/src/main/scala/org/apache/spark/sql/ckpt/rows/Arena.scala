package org.apache.spark.sql.ckpt.rows

/** Append-only bytes in slabs of growing size. Large pieces get slabs of exactly their own size.
  *
  * A location stays valid as long as anybody holds the slab, and its bytes stay unchanged unless its owner overwrites
  * them: nothing is reused here. A location packs the slab number (high 32 bits) and the offset in it (low 32 bits).
  */
private[ckpt] final class Arena {
  private var slabs = new Array[Array[Byte]](4)
  private var count = 0
  private var shared = 0 // how many of the slabs have small pieces
  private var last = -1 // the one that has room for more of them
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
  def reserve(length: Int): Long = if (length > Arena.MaxShared) {
    add(length).toLong << 32
  } else {
    if (last < 0 || slabs(last).length - used < length) {
      last = add(math.max(length, math.min(Arena.MaxSlab, Arena.MinSlab << math.min(shared, 10))))
      shared += 1
      used = 0
    }
    val location = (last.toLong << 32) | used
    used += length
    location
  }

  /** Adds a slab; returns its number. */
  private def add(size: Int): Int = {
    if (count == slabs.length) slabs = java.util.Arrays.copyOf(slabs, count * 2)
    slabs(count) = new Array[Byte](size)
    allocated += size
    count += 1
    count - 1
  }
}

private[ckpt] object Arena {
  private final val ArrayHeader = 32
  private val MinSlab = 4 << 10

  /** The G1 collector gives a large array whole regions of a MiB or more. With its header, a slab fills one. */
  private[rows] val MaxSlab = (1 << 20) - ArrayHeader
  private val MaxShared = MaxSlab / 8
}
