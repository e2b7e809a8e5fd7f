package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** The operators of `transformWithState` of a streaming query, without Spark's check of the store. */
private[ckpt] object MinorTransformWithState {

  val unchecked: PartialFunction[SparkPlan, SparkPlan] = {
    case op: TransformWithStateExec if op.isStreaming && op.getClass == classOf[TransformWithStateExec] =>
      new OfScala(op)
    case op: TransformWithStateInPySparkExec
        if op.isStreaming && op.getClass == classOf[TransformWithStateInPySparkExec] =>
      new OfPython(op)
  }

  /** So are its copies with other children. */
  private final class OfScala(@transient op: TransformWithStateExec) extends CopiedOfScala(op) {
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
  private final class OfPython(@transient op: TransformWithStateInPySparkExec) extends CopiedOfPython(op) {
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
