package org.apache.spark.sql.ckpt.store

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.codec.Families
import org.apache.spark.sql.ckpt.transactions.{Begun, ServedStore, Transaction, Transactions}
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.types.StructType

/** One store of a query as its provider has it: what its versions need, and what reads changes and single versions. */
private[ckpt] trait ProvidedStore {
  def stateStoreId: StateStoreId

  private[ckpt] def served: ServedStore
  private[ckpt] def transactions: Transactions
  private[ckpt] def families: Families

  /** Begins a transaction that only reads. */
  private[ckpt] def begin(version: Long, id: Option[String]): Transaction

  /** Refuses to write state that was written with another number of partitions. */
  private[ckpt] def checkPartitions(begun: Begun): Unit

  /** The schemas that the values of a family have had, if Spark lets them evolve: that is what its Avro encoding is for.
    * The rows are UnsafeRows all the same.
    */
  private[ckpt] def valueSchemas(family: String): Seq[StructType]

  private[ckpt] def validate(key: UnsafeRow, value: UnsafeRow): Unit
  private[ckpt] def reportCommit(version: Long): Unit
}
