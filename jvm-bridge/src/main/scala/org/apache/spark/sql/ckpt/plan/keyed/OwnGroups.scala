package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.SparkPlan

/** An operator of ours in place of Spark's, which Spark copies like its own.
  *
  * Spark plans a batch with copies of its operators, which it makes with `copy`. Elsewhere it makes them with `makeCopy`
  * and `clone`, which look for a constructor that takes the operator's members. Ours takes an operator of Spark's.
  */
private[ckpt] trait OwnGroups extends FlatMapGroupsInPandasWithStateExec {

  /** The operator of Spark's of which this one is a copy. Only the driver has it. */
  protected def spark: FlatMapGroupsInPandasWithStateExec

  /** A copy that Spark has made, as an operator like this one. */
  protected def own(copied: FlatMapGroupsInPandasWithStateExec): FlatMapGroupsInPandasWithStateExec

  override def makeCopy(args: Array[AnyRef]): SparkPlan = made(spark.makeCopy(args))
  override def clone(): SparkPlan = made(spark.clone())

  private def made(copied: SparkPlan): SparkPlan = {
    val mine = own(copied.asInstanceOf[FlatMapGroupsInPandasWithStateExec])
    mine.copyTagsFrom(this)
    mine
  }
}
