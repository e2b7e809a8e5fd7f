package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.StreamingQueryPlanTraverseHelper

private[ckpt] object PlanTraversal {

  /** What `found` makes of the nodes of an executed plan, in its order. Also of nodes in a part of it that was run
    * before.
    */
  def collect[A](plan: SparkPlan)(found: PartialFunction[SparkPlan, A]): Seq[A] =
    StreamingQueryPlanTraverseHelper.collectFromUnfoldedPlan(plan)(found)
}
