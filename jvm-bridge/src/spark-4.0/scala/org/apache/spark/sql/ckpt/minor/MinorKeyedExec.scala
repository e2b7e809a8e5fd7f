package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.ckpt.plan.{InitialRows, KeyedExec, KeyedOperator}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType

/** The keyed operator of a physical plan.
  *
  * Spark plans a batch with copies of its operators, which it makes with `copy`. Each copy is a KeyedExec, too.
  */
private[ckpt] final class MinorKeyedExec(
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
    functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion, outputMode, timeoutConf,
    batchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction, skipEmittingInitialStateKeys,
    child)
  with KeyedExec {

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
    new MinorKeyedExec(
      functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion, outputMode,
      timeoutConf, batchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
      skipEmittingInitialStateKeys, InitialRows.keepInFirstBatch(child, stateInfo))
}

private[ckpt] object MinorKeyedExec {

  /** The operator as a query's plan has it before a batch is planned. */
  def of(keyed: KeyedOperator, child: SparkPlan): MinorKeyedExec = new MinorKeyedExec(
    keyed.functionExpr, keyed.groupingAttributes, keyed.outputAttrs, keyed.stateType, None,
    SQLConf.get.getConf(SQLConf.FLATMAPGROUPSWITHSTATE_STATE_FORMAT_VERSION), keyed.mode, keyed.timeout, None, None,
    None, false, child)
}
