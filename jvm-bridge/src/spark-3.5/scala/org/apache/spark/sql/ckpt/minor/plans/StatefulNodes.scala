package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.catalyst.plans.logical._

private[ckpt] object StatefulNodes {

  /** Whether the node itself keeps state in a streaming query. From Spark 4.3 on, nodes say so themselves. */
  def isOne(node: LogicalPlan): Boolean = node.isStreaming && (node match {
    case join: Join => join.left.isStreaming && join.right.isStreaming
    case _: Aggregate | _: Deduplicate | _: DeduplicateWithinWatermark | _: Distinct | _: GlobalLimit => true
    case _: FlatMapGroupsInPandasWithState | _: FlatMapGroupsWithState => true
    case _ => TransformWithStateNodes.isOne(node)
  })
}
