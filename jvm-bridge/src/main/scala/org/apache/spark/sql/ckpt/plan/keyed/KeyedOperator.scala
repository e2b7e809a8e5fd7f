package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, Expression, PythonUDF}
import org.apache.spark.sql.catalyst.plans.logical.{FlatMapGroupsInPandasWithState, Generate, LogicalPlan, UnaryNode}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.minor.plans.StatefulNode
import org.apache.spark.sql.execution.{SparkPlan, SparkStrategy}
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType

/** A keyed operator in a logical plan. Spark's rules against several applyInPandasWithState do not know this node. */
private[ckpt] final case class KeyedOperator(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outputAttrs: Seq[Attribute],
    stateType: StructType,
    mode: OutputMode,
    timeout: GroupStateTimeout,
    child: LogicalPlan)
  extends UnaryNode
  with StatefulNode {
  override def output: Seq[Attribute] = outputAttrs
  override def producedAttributes: AttributeSet = AttributeSet(outputAttrs)
  override protected def withNewChildInternal(newChild: LogicalPlan): LogicalPlan = copy(child = newChild)

  /** As the user wrote it: `keyed(uid='...')`. */
  def name: String = KeyedOperator.nameOf(functionExpr)
}

private[ckpt] object KeyedOperator {
  private val Ours = "keyed\\(uid=.*\\)"

  /** The name of a Python function in a plan; empty if it has none. */
  def nameOf(function: Expression): String = function match {
    case udf: PythonUDF => udf.name
    case _ => ""
  }

  /** Puts a keyed operator in the place of each applyInPandasWithState that `keyed` has made, and of the `ckpt_rows` of
    * its answers.
    */
  object Own extends Rule[LogicalPlan] {
    override def apply(plan: LogicalPlan): LogicalPlan = plan.resolveOperatorsUp {
      case Generate(_: OperatorRows, _, _, _, output, keyed: KeyedOperator) => keyed.copy(outputAttrs = output)
      case f: FlatMapGroupsInPandasWithState if f.isStreaming && f.resolved && nameOf(f.functionExpr).matches(Ours) =>
        KeyedOperator(
          f.functionExpr, f.groupingAttributes, f.outputAttrs, f.stateType, f.outputMode, f.timeout, f.child)
    }
  }

  object Strategy extends SparkStrategy {
    override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
      case keyed: KeyedOperator => new KeyedExec(CopiedGroups.of(keyed, planLater(keyed.child))) :: Nil
      case _ => Nil
    }
  }
}
