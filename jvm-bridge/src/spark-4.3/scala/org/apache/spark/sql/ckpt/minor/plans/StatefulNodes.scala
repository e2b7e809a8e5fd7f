package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

private[ckpt] object StatefulNodes {

  /** Whether the node itself keeps state in a streaming query. */
  def isOne(node: LogicalPlan): Boolean = node.isStateful && node.isStreaming
}
