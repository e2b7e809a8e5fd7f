package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.catalyst.expressions.CollationAwareMurmur3Hash
import org.apache.spark.sql.classic
import org.apache.spark.sql.execution.datasources.v2
import org.apache.spark.sql.execution.python.streaming
import org.apache.spark.sql.execution.streaming.state

private[minor] trait RenamedNames {
  type ClassicSession = classic.SparkSession
  type FlatMapGroupsInPandasWithStateExec = streaming.FlatMapGroupsInPandasWithStateExec
  type KeyStateEncoderSpec = state.KeyStateEncoderSpec

  /** The hash by which Spark partitions rows. */
  type PartitionHash = CollationAwareMurmur3Hash
  type RocksDBKeyStateEncoder = state.RocksDBKeyStateEncoder
  type StateStoreIterator[A] = state.StateStoreIterator[A]
  type StreamingTableRelation = v2.StreamingDataSourceV2ScanRelation

  val NoPrefixKeyStateEncoderSpec: state.NoPrefixKeyStateEncoderSpec.type = state.NoPrefixKeyStateEncoderSpec
  val PrefixKeyScanStateEncoderSpec: state.PrefixKeyScanStateEncoderSpec.type = state.PrefixKeyScanStateEncoderSpec
}
