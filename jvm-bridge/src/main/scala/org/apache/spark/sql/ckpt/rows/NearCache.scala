package org.apache.spark.sql.ckpt.rows

import org.apache.spark.sql.ckpt.settings.MemoryBudget

/** Keeps the rows that the last transaction of one store had in memory for the next one.
  *
  * The cache may be incomplete, but it is never wrong: its rows are tagged with the version that they show, lent to one
  * transaction at a time, and forgotten when the next transaction starts from another version.
  */
private[ckpt] final class NearCache(budget: MemoryBudget) {
  private var rows: ByteMap = _
  private var tag: String = _
  private var lent = false
  private var isEmptied = false

  budget.cacheOpened()

  /** The rows of `version`, perhaps none, for a transaction that gives them back; null if another one has them. */
  def lend(version: String): ByteMap = synchronized {
    if (lent) {
      null
    } else {
      lent = true
      val kept = if (rows != null && tag == version) rows else new ByteMap
      rows = null
      kept
    }
  }

  /** Whether a transaction on `version` would be lent all rows of its state. */
  def hasAll(version: String): Boolean = synchronized(!lent && rows != null && rows.isComplete && tag == version)

  /** Ends the loan; `rows` show `version`. */
  def giveBack(rows: ByteMap, version: String): Unit = synchronized {
    this.rows = if (isEmptied) null else rows
    tag = version
    lent = false
  }

  /** Ends the loan of a transaction whose rows show no version. */
  def discard(): Unit = giveBack(null, null)

  /** Forgets all rows for good, also those that are lent, when they come back. */
  def empty(): Unit = synchronized {
    isEmptied = true
    rows = null
  }

  def close(): Unit = budget.cacheClosed()
}
