package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, BasePredicate, Expression}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.CompletionIterator

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

  /** Tells the Python worker, which starts after this, up to which event time a row is late in this batch. */
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] = {
    eventTimeWatermarkForLateEvents.foreach { late =>
      TaskContext.get().getLocalProperties.setProperty(KeyedExec.LateMs, late.toString)
    }
    super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
  }

  /** The Python worker sees to late rows of a processor that takes them. */
  override def applyRemovingRowsOlderThanWatermark(
      rows: Iterator[InternalRow], isLate: BasePredicate): Iterator[InternalRow] =
    if (child.output.exists(_.name == KeyedExec.TimeOfAll)) rows
    else super.applyRemovingRowsOlderThanWatermark(rows, isLate)

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
      skipEmittingInitialStateKeys, InitialRows.keepInFirstBatch(child, stateInfo))

  override def canEqual(other: Any): Boolean = other.isInstanceOf[KeyedExec]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode + 1
}

private[ckpt] object KeyedExec {

  /** The local property of a task that has the event time, in ms, up to which a row is late. */
  final val LateMs = "ckpt.lateMs"

  /** The column with the event time of rows of which no late one is dropped before the operator. */
  final val TimeOfAll = "__ckpt_time_of_all"
}
