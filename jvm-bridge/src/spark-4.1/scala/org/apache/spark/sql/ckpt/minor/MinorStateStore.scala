package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Spark's trait, with what stores have from a later release on. */
private[ckpt] trait MinorStateStore extends StateStore {
  def allColumnFamilyNames: Set[String]
  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow]
  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean
  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair]
  def prefixScanWithMultiValues(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit

  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit
}
