package org.apache.spark.sql.ckpt.minor.query

import java.lang.reflect.InvocationTargetException

import org.apache.spark.sql.catalyst.plans.logical.{EventTimeWatermark, LogicalPlan}
import org.apache.spark.sql.ckpt.minor.{
  ClassicSession,
  EventTimeWatermarkExec,
  MicroBatchExecution,
  MultipleWatermarkPolicy,
  WatermarkTracker
}
import org.apache.spark.sql.connector.read.streaming.SparkDataStream
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.AcceptsLatestSeenOffsetHandler

/** The nodes of a query's plans that make its watermark. They have no ids: Spark, too, knows them by their order. */
private[ckpt] object WatermarkNodes {
  type Id = Int

  def areFoundByOrder: Boolean = true

  def of(plan: LogicalPlan): Seq[(Id, EventTimeWatermark)] =
    plan.collect { case node: EventTimeWatermark => node }.zipWithIndex.map(_.swap)

  /** The nodes of an executed plan that have had rows, with the watermark of the rows. */
  def withRows(plan: SparkPlan): Map[Id, Long] =
    PlanTraversal.collect(plan) { case node: EventTimeWatermarkExec => node }.zipWithIndex.collect {
      case (node, id) if node.eventTimeStats.value.count > 0 => id -> (node.eventTimeStats.value.max - node.delayMs)
    }.toMap
}

/** Spark's tracker of a query's watermark. */
private[ckpt] abstract class MinorWatermarkTracker(policy: MultipleWatermarkPolicy, plan: LogicalPlan)
  extends WatermarkTracker(policy)

private[ckpt] object MinorWatermarkTracker {
  private val field = classOf[MicroBatchExecution].getDeclaredField("watermarkTracker")
  private val sources = classOf[MicroBatchExecution].getDeclaredMethod("sources")
  private val readCheckpoint = classOf[MicroBatchExecution].getDeclaredMethod(
    "populateStartOffsets",
    classOf[ClassicSession])
  Seq(field, sources, readCheckpoint).foreach(_.setAccessible(true))

  /** Spark's tracker of a query, into which the query's checkpoint has been read. Spark 3.5 makes it within the first
    * trigger; so this does in advance what that trigger would do.
    */
  def of(query: MicroBatchExecution): WatermarkTracker = {
    if (field.get(query) == null) {
      AcceptsLatestSeenOffsetHandler.setLatestSeenOffsetOnSources(
        query.offsetLog.getLatest().map(_._2),
        sources.invoke(query).asInstanceOf[Seq[SparkDataStream]])
      try readCheckpoint.invoke(query, QuerySession.of(query))
      catch { case wrapped: InvocationTargetException => throw wrapped.getCause }
    }
    field.get(query).asInstanceOf[WatermarkTracker]
  }

  /** Replaces the tracker. */
  def put(query: MicroBatchExecution, tracker: WatermarkTracker): Unit = field.set(query, tracker)
}
