package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}

/** Spark asks for no snapshot. */
private[ckpt] trait MinorStateStoreProvider
  extends ProviderOperations with StateStoreProvider with StoreOpening with ReadStores {
  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    storeToWrite(version, stateStoreCkptId)
}
