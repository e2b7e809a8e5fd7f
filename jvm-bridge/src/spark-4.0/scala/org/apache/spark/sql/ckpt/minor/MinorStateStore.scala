package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.ckpt.StoreOperations
import org.apache.spark.sql.execution.streaming.state.StateStore

/** Spark's store, which has families of rows. */
private[ckpt] trait MinorStateStore extends StoreOperations with StateStore
