package org.apache.spark.sql.ckpt.minor.query

import java.util.UUID

import org.apache.spark.sql.catalyst.plans.logical.{EventTimeWatermark, LogicalPlan}
import org.apache.spark.sql.ckpt.minor.{
  EventTimeWatermarkExec,
  MicroBatchExecution,
  MultipleWatermarkPolicy,
  WatermarkTracker
}
import org.apache.spark.sql.execution.SparkPlan

/** The nodes of a query's plans that make its watermark. */
private[ckpt] object WatermarkNodes {
  type Id = UUID

  def areFoundByOrder: Boolean = false

  /** A frame that is used twice has one. */
  def of(plan: LogicalPlan): Seq[(Id, EventTimeWatermark)] =
    plan.collect { case node: EventTimeWatermark => node.nodeId -> node }.distinctBy(_._1)

  /** The nodes of an executed plan that have had rows, with the watermark of the rows. */
  def withRows(plan: SparkPlan): Map[Id, Long] = PlanTraversal.collect(plan) {
    case node: EventTimeWatermarkExec if node.eventTimeStats.value.count > 0 =>
      node.nodeId -> (node.eventTimeStats.value.max - node.delayMs)
  }.toMap
}

/** Spark's tracker of a query's watermark. */
private[ckpt] abstract class MinorWatermarkTracker(policy: MultipleWatermarkPolicy, plan: LogicalPlan)
  extends WatermarkTracker(policy, plan)

private[ckpt] object MinorWatermarkTracker {
  private val field = classOf[MicroBatchExecution].getDeclaredField("watermarkTracker")
  field.setAccessible(true)

  /** Spark's tracker of a query, into which the query's checkpoint has been read. */
  def of(query: MicroBatchExecution): WatermarkTracker = field.get(query).asInstanceOf[WatermarkTracker]

  /** Replaces the tracker. */
  def put(query: MicroBatchExecution, tracker: WatermarkTracker): Unit = field.set(query, tracker)
}
