package org.apache.spark.sql.ckpt.minor.codec

import org.rocksdb.RocksIterator

/** The row at which an iterator is, as far as it fits into an array. Each returns the length of the whole. */
private[ckpt] object RocksRows {
  def key(rows: RocksIterator, into: Array[Byte]): Int = rows.key(into)
  def value(rows: RocksIterator, into: Array[Byte]): Int = rows.value(into)
}
