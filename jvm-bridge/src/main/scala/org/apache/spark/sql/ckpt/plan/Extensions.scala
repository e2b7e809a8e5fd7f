package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.{
  AnalysisException,
  SparkSession,
  SparkSessionExtensions,
  SparkSessionExtensionsProvider,
  classic
}
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.catalyst.plans.logical.{FlatMapGroupsInPandasWithState, LogicalPlan}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf

/** The extensions of a session with the jar; Spark finds them through the jar's list of services. */
private[ckpt] class Extensions extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectPostHocResolutionRule(_ => KeyedOperator.Own)
    extensions.injectPlannerStrategy(_ => KeyedOperator.Strategy)
    extensions.injectCheckRule(_ => OneKeyedOperator)
    extensions.injectCheckRule(session => new FollowQueries(session))
  }
}

/** Attaches to the queries of a session when it has its first streaming frame: Spark offers a jar no earlier hook. */
private[ckpt] final class FollowQueries(session: SparkSession) extends (LogicalPlan => Unit) {
  override def apply(plan: LogicalPlan): Unit = session match {
    // A query plans its batches in a copy of its session, which starts no queries.
    case own: classic.SparkSession
        if plan.isStreaming && own.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY) == null =>
      ForeachBatchCheck.attachTo(own)
    case _ =>
  }
}

/** Refuses a second keyed operator as soon as its frame meets the first. The error has both names and what to do.
  *
  * Spark runs one applyInPandasWithState in a query. It would report a second one only when the query starts, under a
  * name that the user has not written. Where Spark does not check, there is no check here.
  */
private[ckpt] object OneKeyedOperator extends (LogicalPlan => Unit) {
  private val Ours = "(keyed|with_states)\\(uid=.*\\)".r

  override def apply(plan: LogicalPlan): Unit =
    if (plan.isStreaming && SQLConf.get.isUnsupportedOperationCheckEnabled) {
      val names = operators(plan)
      if (names.size > 1 && names.exists(Ours.matches)) throw refusal(names)
    }

  /** The names of all applyInPandasWithState in a plan. */
  def operators(plan: LogicalPlan): Seq[String] = plan.collect {
    case group: FlatMapGroupsInPandasWithState if group.isStreaming => nameOf(group)
  }

  private def nameOf(group: FlatMapGroupsInPandasWithState): String = group.functionExpr match {
    case udf: PythonUDF if Ours.matches(udf.name) => udf.name
    case udf: PythonUDF => s"applyInPandasWithState of ${udf.name}"
    case _ => "applyInPandasWithState"
  }

  private def refusal(names: Seq[String]): AnalysisException = {
    val all = s"${names.init.mkString(", ")} and ${names.last}"
    val text = CkptErrors.text(
      "InvalidInputError", s"$all are in one query, and Spark 4.3 runs one keyed operator in a query.",
      "Do their work in one processor, over the union of their inputs if these are two, or write a query for each, " +
        "with a topic or a table in between.")
    new AnalysisException("_LEGACY_ERROR_TEMP_3102", Map("msg" -> text)) // Spark's condition for unsupported plans
  }
}
