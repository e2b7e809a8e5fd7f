package org.apache.spark.sql.ckpt.rows

import org.apache.spark.sql.ckpt.settings.MemoryBudget

/** What one store of the memory backend holds of the memory that all of them share.
  *
  * A store that does not get what it needs falls back: from then on it reads through RocksDB, until it is closed.
  * Before that, `free` may close the residences of stores that nobody uses; it says whether there were any.
  * Thread-safe: a store may be closed while one of its transactions is open.
  */
private[ckpt] final class Residence(
    budget: MemoryBudget, isWanted: Boolean, free: () => Boolean, onFallBack: Long => Unit) {
  @volatile private var heldBytes = 0L
  private var isOpen = isWanted
  private var hasFallen = false

  /** Whether the store keeps its whole state in memory, or may. */
  def isOn: Boolean = synchronized(isOpen)

  /** Whether the store needed more memory than it could get. */
  def fellBack: Boolean = synchronized(hasFallen)

  /** The bytes that the store may take without asking again. */
  def held: Long = heldBytes

  /** Asks for `bytes` in all; false if the stores together would have more than their part of the memory limit. */
  def hold(bytes: Long): Boolean = take(bytes) || isOn && free() && take(bytes)

  private def take(bytes: Long): Boolean = synchronized {
    isOpen && budget.hold(bytes - heldBytes) && {
      heldBytes = bytes
      true
    }
  }

  /** Gives back everything, because the state of the store, `neededBytes`, does not fit. */
  def fallBack(neededBytes: Long): Unit = synchronized {
    if (isOpen) {
      hasFallen = true
      close()
      onFallBack(neededBytes)
    }
  }

  /** Gives back everything, because nothing of the store is in memory; it may hold some again. */
  def clear(): Unit = synchronized {
    budget.hold(-heldBytes)
    heldBytes = 0
  }

  def close(): Unit = synchronized {
    clear()
    isOpen = false
  }
}

private[ckpt] object Residence {

  /** Of a store of the RocksDB backend. */
  def none(budget: MemoryBudget): Residence = new Residence(budget, isWanted = false, () => false, _ => ())
}
