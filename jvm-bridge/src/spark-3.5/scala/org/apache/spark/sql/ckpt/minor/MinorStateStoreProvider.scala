package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.ckpt.ProviderOperations
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore, StateStoreProvider}

/** Commits have no ids, and a task that only reads does not become one that writes. */
private[ckpt] trait MinorStateStoreProvider extends ProviderOperations with StateStoreProvider with StoreOpening {
  override def getStore(version: Long): StateStore =
    getStore(version, None, forceSnapshotOnCommit = false, loadEmpty = false)

  override def getReadStore(version: Long): ReadStateStore = getReadStore(version, None)
}
