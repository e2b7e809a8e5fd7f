package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.minor.{KeyStateEncoderSpec, StateStoreIterator}
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.sql.types.StructType

/** What the newest release of Spark asks of a store with column families. Earlier ones ask for less, or in another form.
  *
  * Spark's own trait comes after this one in a list of parents: it has the default arguments.
  */
private[ckpt] trait StoreOperations {
  def allColumnFamilyNames: Set[String]
  def get(key: UnsafeRow, colFamilyName: String): UnsafeRow
  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow]
  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean
  def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow]
  def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair]
  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair]
  def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]
  def prefixScanWithMultiValues(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit
  def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit
  def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit
  def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit
  def remove(key: UnsafeRow, colFamilyName: String): Unit
  def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit

  def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit

  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit

  def removeColFamilyIfExists(colFamilyName: String): Boolean
  def release(): Unit

  /** Whether this is an open read store of `version`. `id`: the version's id, if versions have ids. */
  private[ckpt] def canBecomeWritable(version: Long, id: Option[String]): Boolean
}
