package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore, StateStoreProvider}

/** Commits have no ids. */
private[ckpt] trait MinorStateStoreProvider
  extends ProviderOperations with StateStoreProvider with StoreOpening with ReadStores {
  override def getStore(version: Long): StateStore = storeToWrite(version, None)

  override def getReadStore(version: Long): ReadStateStore = getReadStore(version, None)
}
