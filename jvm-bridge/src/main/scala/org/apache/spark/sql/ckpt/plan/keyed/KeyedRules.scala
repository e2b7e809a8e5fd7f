package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.AnalysisException
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.catalyst.plans.logical.{
  Aggregate,
  FlatMapGroupsInPandasWithState,
  FlatMapGroupsWithState,
  LogicalPlan
}
import org.apache.spark.sql.catalyst.streaming.{InternalOutputModes, WriteToStream}
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.minor.plans.{PlanErrors, StatefulNodes}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.OutputMode

/** Checks keyed operators. Spark's own check of a streaming plan does not know them.
  *
  * A plan is checked whenever a frame is made, and once more, with its output mode, when the query starts. Where Spark
  * does not check, there is no check here.
  */
private[ckpt] object KeyedRules extends (LogicalPlan => Unit) {
  private val Update = InternalOutputModes.Update
  private val Append = InternalOutputModes.Append
  private val WithUid = "(?:keyed|with_states)\\(uid=(.*)\\)".r

  override def apply(plan: LogicalPlan): Unit =
    if (plan.isStreaming && SQLConf.get.isUnsupportedOperationCheckEnabled) {
      val operators = plan.collect { case keyed: KeyedOperator => keyed }
      if (operators.nonEmpty) {
        requireDifferentUids(plan)
        operators.foreach(requireWatermark)
        plan.foreach(requireRowsThatStay)
        plan match {
          case query: WriteToStream => requireMode(query.outputMode, operators)
          case _ =>
        }
      }
    }

  private def requireDifferentUids(plan: LogicalPlan): Unit = {
    val uids = plan.collect {
      case keyed: KeyedOperator => keyed.name
      case group: FlatMapGroupsInPandasWithState => KeyedOperator.nameOf(group.functionExpr)
    }.collect { case WithUid(uid) => uid }
    uids.diff(uids.distinct).headOption.foreach { uid =>
      throw refusal(
        s"Two operators of this query have the uid $uid.",
        "Give each its own uid, by which its state is found. A frame that is used twice, as in a self-join, " +
          "has its operators twice: create it by two calls.")
    }
  }

  /** Operators after a function of Spark's own have no watermark. Timers would never fire there, and with one more
    * withWatermark the query would stand still.
    */
  private def requireWatermark(keyed: KeyedOperator): Unit = keyed.child.foreach {
    case group: FlatMapGroupsInPandasWithState => throw withoutWatermark(keyed,
        group.functionExpr match {
          case udf: PythonUDF => s"applyInPandasWithState of ${udf.name}"
          case _ => "applyInPandasWithState"
        })
    case _: FlatMapGroupsWithState => throw withoutWatermark(keyed, "(flat)mapGroupsWithState")
    case _ =>
  }

  private def withoutWatermark(keyed: KeyedOperator, other: String): AnalysisException = refusal(
    s"${keyed.name} comes after $other, which passes on no watermark in Spark.",
    "Make that a keyed operator, too: keyed(...).apply_in_pandas_with_state takes its function as it is.")

  /** Rows in update mode replace earlier ones, which an operator of Spark would count again. */
  private def requireRowsThatStay(plan: LogicalPlan): Unit =
    if (StatefulNodes.isOne(plan) && !plan.isInstanceOf[KeyedOperator]) {
      plan.children.foreach(_.foreach {
        case keyed: KeyedOperator if keyed.mode == Update =>
          throw refusal(
            s"${keyed.name} has the mode 'update', but feeds Spark's ${plan.nodeName}, which takes no updates.",
            "Give it the mode 'append', and let it output each row once.")
        case _ =>
      })
    }

  private def requireMode(mode: OutputMode, operators: Seq[KeyedOperator]): Unit = operators.foreach { keyed =>
    if (mode == Append && keyed.mode == Update) {
      throw refusal(
        s"${keyed.name} has the mode 'update', but the query has the output mode 'append'.",
        s"Give the operator the mode 'append', or start the query in the output mode 'update'.")
    }
    if (mode != Append) {
      keyed.child.foreach {
        case aggregate: Aggregate if aggregate.isStreaming =>
          throw refusal(
            s"${keyed.name} comes after an aggregation, which outputs a row again whenever it changes, because the " +
              s"query has the output mode '${mode.toString.toLowerCase}'.",
            "Start the query in the output mode 'append', or use a keyed operator in place of the aggregation.")
        case _ =>
      }
    }
  }

  private def refusal(message: String, hint: String): AnalysisException =
    PlanErrors.unsupported(CkptErrors.text("InvalidInputError", message, hint))
}
