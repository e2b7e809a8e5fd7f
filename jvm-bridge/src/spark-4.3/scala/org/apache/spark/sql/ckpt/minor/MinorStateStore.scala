package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state.StateStore

/** Spark's trait, with what stores have from a later release on: nothing. */
private[ckpt] trait MinorStateStore extends StateStore
