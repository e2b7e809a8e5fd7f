package org.apache.spark.sql.ckpt.store

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.codec.Family
import org.apache.spark.sql.ckpt.rows.Cursor
import org.apache.spark.sql.ckpt.transactions.Transaction
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/** Pairs of rows from a cursor, without deleted ones. */
private[ckpt] final class RowIterator(cursor: Cursor, family: Family, txn: Transaction, all: Boolean)
  extends Iterator[UnsafeRowPair] {
  private val pair = new UnsafeRowPair
  private var values: Iterator[UnsafeRow] = Iterator.empty
  private var key: UnsafeRow = _

  override def hasNext: Boolean = values.hasNext || txn.synchronized {
    txn.checkOpen()
    while (cursor.valid && (cursor.deleted || (all && cursor.valueLength == 0))) cursor.advance()
    if (!cursor.valid) cursor.close()
    cursor.valid
  }

  override def next(): UnsafeRowPair = txn.synchronized {
    if (!hasNext) throw new NoSuchElementException("no more rows")
    if (values.hasNext) {
      pair.withRows(key, values.next())
    } else {
      key = family.keys.decode(cursor.key)
      txn.remember(cursor.key)
      if (all) {
        values = family.values.decodeAll(cursor.valueBase, cursor.valueFrom, cursor.valueLength)
        cursor.advance()
        next()
      } else {
        val value = family.values.decode(cursor.valueBase, cursor.valueFrom, cursor.valueLength)
        cursor.advance()
        pair.withRows(key, value)
      }
    }
  }
}
