package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql
import org.apache.spark.sql.catalyst.expressions.Murmur3Hash
import org.apache.spark.sql.execution.datasources.v2
import org.apache.spark.sql.execution.python
import org.apache.spark.sql.execution.streaming.state.RocksDBStateEncoder
import org.apache.spark.sql.types.StructType

private[minor] trait RenamedNames {
  type ClassicSession = sql.SparkSession
  type FlatMapGroupsInPandasWithStateExec = python.FlatMapGroupsInPandasWithStateExec

  /** The hash by which Spark partitions rows. */
  type PartitionHash = Murmur3Hash
  type RocksDBKeyStateEncoder = RocksDBStateEncoder
  type StreamingTableRelation = v2.StreamingDataSourceV2Relation
}

/** How Spark encodes keys. Spark itself has no such classes before 4.0.
  *
  * `json` is part of what is stored: it must be what Spark 4 writes, so that later releases take the state over.
  */
private[ckpt] sealed trait KeyStateEncoderSpec {
  def keySchema: StructType
  def json: String
}

private[ckpt] final case class NoPrefixKeyStateEncoderSpec(keySchema: StructType) extends KeyStateEncoderSpec {
  override def json: String = """{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}"""
}

private[ckpt] final case class PrefixKeyScanStateEncoderSpec(keySchema: StructType, numColsPrefixKey: Int)
  extends KeyStateEncoderSpec {
  override def json: String =
    s"""{"keyStateEncoderType":"PrefixKeyScanStateEncoderSpec","numColsPrefixKey":$numColsPrefixKey}"""
}

/** An iterator that can be closed before its end. */
private[ckpt] final class StateStoreIterator[A](rows: Iterator[A], onClose: () => Unit) extends Iterator[A] {
  override def hasNext: Boolean = rows.hasNext
  override def next(): A = rows.next()
  def close(): Unit = onClose()
}
