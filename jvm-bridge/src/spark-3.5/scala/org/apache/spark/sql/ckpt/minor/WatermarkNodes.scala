package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.catalyst.plans.logical.{EventTimeWatermark, LogicalPlan}
import org.apache.spark.sql.execution.SparkPlan

/** The nodes of a query's plans that make its watermark. They have no ids: Spark, too, knows them by their order. */
private[ckpt] object WatermarkNodes {
  type Id = Int

  def of(plan: LogicalPlan): Seq[(Id, EventTimeWatermark)] =
    plan.collect { case node: EventTimeWatermark => node }.zipWithIndex.map(_.swap)

  /** Those of an executed plan that have had rows, with the watermark of the rows. */
  def withRows(plan: SparkPlan): Map[Id, Long] =
    PlanTraversal.collect(plan) { case node: EventTimeWatermarkExec => node }.zipWithIndex.collect {
      case (node, id) if node.eventTimeStats.value.count > 0 => id -> (node.eventTimeStats.value.max - node.delayMs)
    }.toMap
}

/** Spark's tracker of a query's watermark. */
private[ckpt] abstract class MinorWatermarkTracker(policy: MultipleWatermarkPolicy, plan: LogicalPlan)
  extends WatermarkTracker(policy)
