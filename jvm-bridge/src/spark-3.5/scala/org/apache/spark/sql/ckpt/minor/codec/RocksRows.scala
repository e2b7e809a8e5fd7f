package org.apache.spark.sql.ckpt.minor.codec

import org.rocksdb.RocksIterator

/** The row at which an iterator is, as far as it fits into an array. Each returns the length of the whole. */
private[ckpt] object RocksRows {
  def key(rows: RocksIterator, into: Array[Byte]): Int = copy(rows.key, into)
  def value(rows: RocksIterator, into: Array[Byte]): Int = copy(rows.value, into)

  private def copy(bytes: Array[Byte], into: Array[Byte]): Int = {
    System.arraycopy(bytes, 0, into, 0, math.min(bytes.length, into.length))
    bytes.length
  }
}
