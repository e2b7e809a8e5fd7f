package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.codec.Families
import org.apache.spark.sql.execution.streaming.state.{StateStore, UnsafeRowPair}

/** Spark's store, which has one family of rows. */
private[ckpt] trait MinorStateStore extends StoreOperations with StateStore {
  override def get(key: UnsafeRow): UnsafeRow = get(key, Families.Default)
  override def put(key: UnsafeRow, value: UnsafeRow): Unit = put(key, value, Families.Default)
  override def remove(key: UnsafeRow): Unit = remove(key, Families.Default)
  override def iterator(): Iterator[UnsafeRowPair] = iterator(Families.Default)
  override def prefixScan(prefixKey: UnsafeRow): Iterator[UnsafeRowPair] = prefixScan(prefixKey, Families.Default)
}
