package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.execution.SparkPlan

private[ckpt] object PlanTraversal {

  /** What `found` makes of the nodes of an executed plan, in its order. */
  def collect[A](plan: SparkPlan)(found: PartialFunction[SparkPlan, A]): Seq[A] = plan.collect(found)
}
