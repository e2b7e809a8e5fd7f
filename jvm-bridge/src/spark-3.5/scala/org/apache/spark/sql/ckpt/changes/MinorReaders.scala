package org.apache.spark.sql.ckpt.changes

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Spark 3.5 has no reader of single versions of state. */
private[ckpt] trait MinorReaders extends StateStoreProvider
