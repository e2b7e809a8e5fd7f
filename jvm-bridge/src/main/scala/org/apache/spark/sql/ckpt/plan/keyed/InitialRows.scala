package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet}
import org.apache.spark.sql.catalyst.plans.logical.{BinaryNode, LogicalPlan, Union}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.minor.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.{LeafExecNode, SparkPlan, SparkStrategy, UnaryExecNode, UnionExec}

/** The rows of a stream, and those of a batch frame that the first batch of a query has as well.
  *
  * Spark refuses a union of both, because its own would have the rows of the batch frame in every batch.
  */
private[ckpt] final case class WithInitialRows(left: LogicalPlan, right: LogicalPlan) extends BinaryNode {
  override def output: Seq[Attribute] = Union(children).output

  /** All columns, so that Spark prunes none of one side alone. */
  @transient override lazy val references: AttributeSet = AttributeSet(children.flatMap(_.output))

  override protected def withNewChildrenInternal(newLeft: LogicalPlan, newRight: LogicalPlan): LogicalPlan =
    copy(newLeft, newRight)
}

/** Marks the part of a plan that is not there after the first batch. */
private[ckpt] final case class InitialRowsExec(child: SparkPlan) extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output
  override protected def doExecute(): RDD[InternalRow] = child.execute()
  override protected def withNewChildInternal(newChild: SparkPlan): SparkPlan = copy(newChild)
}

/** What is left of one source of initial rows after the first batch. */
private[ckpt] final case class NoRowsExec(output: Seq[Attribute]) extends LeafExecNode {
  override protected def doExecute(): RDD[InternalRow] = sparkContext.emptyRDD
}

private[ckpt] object InitialRows {

  /** The key in the metadata of a column by which a frame of initial rows is known. */
  private final val Mark = "ckpt.initial"

  /** Takes the place of the union that `keyed` has made. */
  object Own extends Rule[LogicalPlan] {
    override def apply(plan: LogicalPlan): LogicalPlan = plan.resolveOperatorsUp {
      case union: Union if union.resolved && union.children.exists(isInitial) =>
        val (initial, stream) = union.children.partition(isInitial)
        WithInitialRows(join(stream), join(initial))
    }

    private def isInitial(plan: LogicalPlan): Boolean =
      !plan.isStreaming && plan.output.exists(_.metadata.contains(Mark))

    /** Spark joins unions of unions, those of the user's frames as well. */
    private def join(plans: Seq[LogicalPlan]): LogicalPlan = if (plans.length == 1) plans.head else Union(plans)
  }

  object Strategy extends SparkStrategy {
    override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
      case WithInitialRows(stream, initial) =>
        UnionExec(Seq(planLater(stream), InitialRowsExec(planLater(initial)))) :: Nil
      case _ => Nil
    }
  }

  /** Empties the initial rows in the plan of a batch that begins with state.
    *
    * Spark counts the input of its sources by the leaves of a plan, so their number stays.
    */
  def keepInFirstBatch(plan: SparkPlan, stateInfo: Option[StatefulOperatorStateInfo]): SparkPlan =
    if (stateInfo.forall(_.storeVersion == 0)) plan
    else {
      plan.transform { case initial: InitialRowsExec =>
        UnionExec(initial.collectLeaves().map(_ => NoRowsExec(initial.output)))
      }
    }
}
