package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.ckpt.minor.{FlatMapGroupsInPandasWithStateExec, StatefulOperatorStateInfo}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType

/** A copy of Spark's operator, with the arguments that its constructor has in this release. */
private[ckpt] abstract class CopiedGroups(group: FlatMapGroupsInPandasWithStateExec)
  extends FlatMapGroupsInPandasWithStateExec(
    group.functionExpr, group.groupingAttributes, group.outAttributes, group.stateType, group.stateInfo,
    group.stateFormatVersion, group.outputMode, group.timeoutConf, group.batchTimestampMs,
    group.eventTimeWatermarkForLateEvents, group.eventTimeWatermarkForEviction, group.skipEmittingInitialStateKeys,
    group.child)
  with OwnGroups {

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
    own(super.copy(
        functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion, outputMode,
        timeoutConf, batchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
        skipEmittingInitialStateKeys, child))
}

private[ckpt] object CopiedGroups {

  /** Spark's operator for a keyed one, as a query's plan has it before a batch is planned. */
  def of(keyed: KeyedOperator, child: SparkPlan): FlatMapGroupsInPandasWithStateExec =
    new FlatMapGroupsInPandasWithStateExec(
      keyed.functionExpr, keyed.groupingAttributes, keyed.outputAttrs, keyed.stateType, None,
      SQLConf.get.getConf(SQLConf.FLATMAPGROUPSWITHSTATE_STATE_FORMAT_VERSION), keyed.mode, keyed.timeout, None, None,
      None, false, child)
}
