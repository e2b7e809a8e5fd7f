package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.TaskContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.util.CompletionIterator

/** An operator that tells the Python workers of its tasks which operators on groups its query has.
  *
  * One task can have several of them, each with a worker of its own, where Spark needs no exchange between them. A worker
  * finds its own operator by the name of its function.
  */
private[ckpt] trait ToldOperators extends FlatMapGroupsInPandasWithStateExec {
  private lazy val told = getTagValue(ToldOperators.OfPlan).getOrElse("")

  override protected def doExecute(): RDD[InternalRow] = {
    // Tasks have no tags. Spark 3.5 sends a worker the properties of its task while later operators of the task begin:
    // none may be new by then, so the job has this one from its start.
    sparkContext.setLocalProperty(ToldOperators.Property, told)
    super.doExecute()
  }

  /** A job that another thread has started lacks the property. */
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] = {
    TaskContext.get().getLocalProperties.setProperty(ToldOperators.Property, told)
    super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
  }
}

private[ckpt] object ToldOperators {

  /** The local property of a task that has one line for each operator of its query that is a Python function on groups:
    * the operator's number, the event time, in ms, up to which a row is late for it in this batch (`-` without a
    * watermark), and the function's name.
    */
  private final val Property = "ckpt.operators"

  private val OfPlan = TreeNodeTag[String]("ckpt.operators")

  /** Lets each such operator of a batch's plan know all of them. */
  object Tell extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
      val groups = plan.collect { case group: FlatMapGroupsInPandasWithStateExec => group }
      val told = groups.flatMap(line).mkString("\n")
      groups.foreach(_.setTagValue(OfPlan, told))
      plan
    }

    private def line(group: FlatMapGroupsInPandasWithStateExec): Option[String] = group.stateInfo.map { info =>
      val late = group.eventTimeWatermarkForLateEvents.fold("-")(_.toString)
      s"${info.operatorId} $late ${KeyedOperator.nameOf(group.functionExpr)}"
    }
  }
}
