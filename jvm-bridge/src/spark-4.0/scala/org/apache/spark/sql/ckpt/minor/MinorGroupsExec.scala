package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.ckpt.plan.{NamedProgress, ToldGroups}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType

/** Spark's operator for a function of `with_states`, with its name in the progress and for its workers. */
private[ckpt] final class MinorGroupsExec(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outAttributes: Seq[Attribute],
    stateType: StructType,
    stateInfo: Option[StatefulOperatorStateInfo],
    stateFormatVersion: Int,
    outputMode: OutputMode,
    timeoutConf: GroupStateTimeout,
    batchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    skipEmittingInitialStateKeys: Boolean,
    child: SparkPlan)
  extends FlatMapGroupsInPandasWithStateExec(
    functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion, outputMode,
    timeoutConf, batchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
    skipEmittingInitialStateKeys, child)
  with NamedProgress
  with ToldGroups {

  override def copy(
      functionExpr: Expression,
      groupingAttributes: Seq[Attribute],
      outAttributes: Seq[Attribute],
      stateType: StructType,
      stateInfo: Option[StatefulOperatorStateInfo],
      stateFormatVersion: Int,
      outputMode: OutputMode,
      timeoutConf: GroupStateTimeout,
      batchTimestampMs: Option[Long],
      eventTimeWatermarkForLateEvents: Option[Long],
      eventTimeWatermarkForEviction: Option[Long],
      skipEmittingInitialStateKeys: Boolean,
      child: SparkPlan): FlatMapGroupsInPandasWithStateExec =
    new MinorGroupsExec(
      functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion, outputMode,
      timeoutConf, batchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
      skipEmittingInitialStateKeys, child)
}

private[ckpt] object MinorGroupsExec {
  def of(group: FlatMapGroupsInPandasWithStateExec): MinorGroupsExec = new MinorGroupsExec(
    group.functionExpr, group.groupingAttributes, group.outAttributes, group.stateType, group.stateInfo,
    group.stateFormatVersion, group.outputMode, group.timeoutConf, group.batchTimestampMs,
    group.eventTimeWatermarkForLateEvents, group.eventTimeWatermarkForEviction, group.skipEmittingInitialStateKeys,
    group.child)
}
