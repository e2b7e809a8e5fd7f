package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType

/** Spark's operator, except that its output has the watermark of its input.
  *
  * Spark plans a batch with copies of its operators, which it makes with `copy`. Each copy is a KeyedExec, too.
  */
private[ckpt] final class KeyedExec(
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
    child) {

  override def produceOutputWatermark(inputWatermarkMs: Long): Option[Long] = Some(inputWatermarkMs)

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
    new KeyedExec(
      functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion, outputMode,
      timeoutConf, batchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction,
      skipEmittingInitialStateKeys, child)

  override def canEqual(other: Any): Boolean = other.isInstanceOf[KeyedExec]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode + 1
}
