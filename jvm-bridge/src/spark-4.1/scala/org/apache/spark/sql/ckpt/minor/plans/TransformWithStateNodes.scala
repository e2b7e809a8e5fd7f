package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.streaming.TimeMode

/** `transformWithState` in a logical plan. */
private[ckpt] object TransformWithStateNodes {
  def isOne(node: LogicalPlan): Boolean = timeMode(node).isDefined

  /** Whether its timers are in processing time. */
  def isOfProcessingTime(node: LogicalPlan): Boolean = timeMode(node).contains(ProcessingTime)

  private def timeMode(node: LogicalPlan): Option[TimeMode] = node match {
    case operator: TransformWithState => Some(operator.timeMode)
    case operator: TransformWithStateInPySpark => Some(operator.timeMode)
    case _ => None
  }
}
