package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.internal.SQLConf

/** Lets `transformWithState` run on this store.
  *
  * Spark refuses any store but its own by the name of the class, although this store has all that the operator needs. Of
  * the rules that a session may add, only columnar ones see a micro-batch's operators with their state. A replacement
  * must not be equal to Spark's operator, or the plan above keeps that one.
  */
private[ckpt] object TransformWithState extends ColumnarRule {
  override def preColumnarTransitions: Rule[SparkPlan] = plan =>
    if (!CkptStateStoreProvider.isChosen(SQLConf.get)) {
      plan
    } else {
      plan.transformUp {
        case op: TransformWithStateExec if op.isStreaming && op.getClass == classOf[TransformWithStateExec] =>
          new OfScala(op)
        case op: TransformWithStateInPySparkExec
            if op.isStreaming && op.getClass == classOf[TransformWithStateInPySparkExec] =>
          new OfPython(op)
      }
    }

  /** Spark's operator, without its check of the store. So are its copies with other children. */
  private final class OfScala(@transient op: TransformWithStateExec)
    extends TransformWithStateExec(
      op.keyDeserializer, op.valueDeserializer, op.groupingAttributes, op.dataAttributes, op.statefulProcessor,
      op.timeMode, op.outputMode, op.keyEncoder, op.outputObjAttr, op.stateInfo, op.batchTimestampMs,
      op.prevBatchTimestampMs, op.eventTimeWatermarkForLateEvents, op.eventTimeWatermarkForEviction, op.child,
      op.isStreaming, op.isRealTimeMode, op.hasInitialState, op.initialStateGroupingAttrs, op.initialStateDataAttrs,
      op.initialStateDeserializer, op.initialState) {
    override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()
    override def canEqual(other: Any): Boolean = other.isInstanceOf[OfScala]
    override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
    override def hashCode: Int = super.hashCode + 1
    override def makeCopy(args: Array[AnyRef]): SparkPlan =
      new OfScala(op.makeCopy(args).asInstanceOf[TransformWithStateExec])
    override protected def withNewChildrenInternal(left: SparkPlan, right: SparkPlan): TransformWithStateExec =
      new OfScala(super.withNewChildrenInternal(left, right))
  }

  /** The same for processors in Python. */
  private final class OfPython(@transient op: TransformWithStateInPySparkExec)
    extends TransformWithStateInPySparkExec(
      op.functionExpr, op.groupingAttributes, op.outputAttrs, op.outputMode, op.timeMode, op.stateInfo,
      op.batchTimestampMs, op.prevBatchTimestampMs, op.eventTimeWatermarkForLateEvents,
      op.eventTimeWatermarkForEviction, op.userFacingDataType, op.child, op.isStreaming, op.hasInitialState,
      op.initialState, op.initialStateGroupingAttrs, op.initialStateSchema) {
    override def validateStateStoreProvider(isStreaming: Boolean): Unit = ()
    override def canEqual(other: Any): Boolean = other.isInstanceOf[OfPython]
    override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
    override def hashCode: Int = super.hashCode + 1
    override def makeCopy(args: Array[AnyRef]): SparkPlan =
      new OfPython(op.makeCopy(args).asInstanceOf[TransformWithStateInPySparkExec])
    override protected def withNewChildrenInternal(
        left: SparkPlan, right: SparkPlan): TransformWithStateInPySparkExec =
      new OfPython(super.withNewChildrenInternal(left, right))
  }
}
