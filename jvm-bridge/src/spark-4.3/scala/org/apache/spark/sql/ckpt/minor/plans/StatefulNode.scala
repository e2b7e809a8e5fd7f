package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

/** A logical node that keeps state. Of a query that has none, Spark may track the progress asynchronously. */
private[ckpt] trait StatefulNode extends LogicalPlan {
  override def isStateful: Boolean = true
}
