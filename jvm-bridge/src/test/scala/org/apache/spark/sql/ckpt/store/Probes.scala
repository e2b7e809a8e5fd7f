package org.apache.spark.sql.ckpt.store

import org.apache.spark.sql.ckpt.Stores
import org.apache.spark.sql.execution.streaming.state._

/** Questions to a store, and what they have in common. */
private[store] object Probes {
  import Stores._

  /** One question to a new provider, and the answer of all stores that are not excepted. */
  final case class Probe(
      name: String,
      expected: String,
      encoder: KeyStateEncoderSpec = noPrefix,
      families: Boolean = false,
      multiple: Boolean = false)(val run: StateStoreProvider => Any) {

    /** That store has no column families and keeps no order. */
    def isForHdfs: Boolean = !families && (encoder == noPrefix || encoder == prefix)
  }

  /** On the store of version 0, which is dropped at the end. */
  def onStore(work: StateStore => Any): StateStoreProvider => Any = provider => {
    val store = provider.getStore(0, None)
    try work(store)
    finally if (!store.hasCommitted) scala.util.Try(store.abort())
  }

  def next(provider: StateStoreProvider, base: Version)(work: StateStore => Unit): Version = {
    val store = provider.getStore(base.number, base.id)
    work(store)
    commit(store)
  }

  def read[T](provider: StateStoreProvider, version: Version)(work: StateStore => T): T = {
    val store = provider.getStore(version.number, version.id)
    try work(store)
    finally store.abort()
  }

  def numbers(encoder: KeyStateEncoderSpec, found: StateStoreIterator[UnsafeRowPair]): String =
    rows(encoder, found).map(row => s"${row._2}=${row._3}").mkString(" ")

  val OutOfOrder = "STATE_STORE_OPERATION_OUT_OF_ORDER"
  val Missing = "STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"
  val BadName = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
  val NoFile = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"
}
