package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.ckpt.minor.plans.OperatorProgress
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.streaming.StateOperatorProgress

/** An operator whose progress has the name that the user gave it, such as `keyed(uid='visits')`. In the checkpoint it has
  * Spark's name for operators of its kind.
  */
private[ckpt] trait NamedProgress extends FlatMapGroupsInPandasWithStateExec {
  override def getProgress(): StateOperatorProgress =
    OperatorProgress.named(super.getProgress(), KeyedOperator.nameOf(functionExpr))

  /** Spark's name for operators of its kind. */
  private[ckpt] def nameInCheckpoint: String = shortName

  override def canEqual(other: Any): Boolean = other.isInstanceOf[NamedProgress]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode + 1
}

private[ckpt] object NamedProgress {
  private val Ours = "with_states\\(uid=.*\\)"

  /** Gives each function of `with_states` in a physical plan an operator with its name. */
  object Rename extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = _.transform {
      case group: FlatMapGroupsInPandasWithStateExec
          if !group.isInstanceOf[NamedProgress] && KeyedOperator.nameOf(group.functionExpr).matches(Ours) =>
        new GroupsExec(group)
    }
  }
}
