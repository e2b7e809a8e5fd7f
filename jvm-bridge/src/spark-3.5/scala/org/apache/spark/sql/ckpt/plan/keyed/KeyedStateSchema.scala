package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec

/** Spark compares the form of a group's row with the checkpoint's record in the task of partition 0. */
private[ckpt] trait KeyedStateSchema extends FlatMapGroupsInPandasWithStateExec
