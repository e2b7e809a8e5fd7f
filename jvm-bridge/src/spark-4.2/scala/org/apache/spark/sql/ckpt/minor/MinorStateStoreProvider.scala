package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.ckpt.ProviderOperations
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

private[ckpt] trait MinorStateStoreProvider
  extends ProviderOperations with StateStoreProvider with StoreOpening with InstanceMetrics with ReadStores
