package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

private[ckpt] trait MinorStateStoreProvider
  extends ProviderOperations with StateStoreProvider with StoreOpening with InstanceMetrics with ReadStores
