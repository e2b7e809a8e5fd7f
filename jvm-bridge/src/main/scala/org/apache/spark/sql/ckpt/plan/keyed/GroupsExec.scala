package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec

/** Spark's operator for a function of `with_states`, with its name in the progress and for its workers. */
private[ckpt] final class GroupsExec(@transient protected val spark: FlatMapGroupsInPandasWithStateExec)
  extends CopiedGroups(spark) with NamedProgress with ToldGroups {
  override protected def own(copied: FlatMapGroupsInPandasWithStateExec): FlatMapGroupsInPandasWithStateExec =
    new GroupsExec(copied)
}
