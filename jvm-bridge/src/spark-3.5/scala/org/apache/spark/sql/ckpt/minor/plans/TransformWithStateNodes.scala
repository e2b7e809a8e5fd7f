package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

/** None: Spark has no `transformWithState` before 4.0. */
private[ckpt] object TransformWithStateNodes {
  def isOne(node: LogicalPlan): Boolean = false
  def isOfProcessingTime(node: LogicalPlan): Boolean = false
}
