package org.apache.spark.sql.ckpt.minor.store

import org.apache.spark.sql.execution.streaming.state.StateStore

/** Spark's store, which has families of rows. */
private[ckpt] trait MinorStateStore extends StoreOperations with StateStore
