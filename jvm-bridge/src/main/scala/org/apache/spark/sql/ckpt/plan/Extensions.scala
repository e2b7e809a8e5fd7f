package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions, SparkSessionExtensionsProvider, classic}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/** The extensions of a session with the jar; Spark finds them through the jar's list of services. */
private[ckpt] class Extensions extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    KeyedFunctions.addTo(extensions)
    extensions.injectPostHocResolutionRule(_ => KeyedOperator.Own)
    extensions.injectPlannerStrategy(_ => KeyedOperator.Strategy)
    extensions.injectCheckRule(_ => KeyedRules)
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
      AvailableNowEnd.attachTo(own)
    case _ =>
  }
}
