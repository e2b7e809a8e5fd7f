package org.apache.spark.sql.ckpt
package plan

import java.util.{Collections, WeakHashMap}

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions, SparkSessionExtensionsProvider, classic}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.ckpt.fence.Fence
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.streaming.StreamingQueryListener

/** The extensions of a session with the jar; Spark finds them through the jar's list of services. */
private[ckpt] class Extensions extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    KeyedFunctions.addTo(extensions)
    extensions.injectPostHocResolutionRule(_ => KeyedOperator.Own)
    extensions.injectPostHocResolutionRule(_ => InitialRows.Own)
    extensions.injectPlannerStrategy(_ => KeyedOperator.Strategy)
    extensions.injectPlannerStrategy(_ => InitialRows.Strategy)
    extensions.injectColumnar(_ => TransformWithState)
    extensions.injectColumnar(_ => KeyedExec.NameAll)
    extensions.injectColumnar(_ => IdleInputs.Check)
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
      FollowQueries.attachTo(own)
    case _ =>
  }
}

private[ckpt] object FollowQueries {
  private val attached = Collections.newSetFromMap(new WeakHashMap[classic.SparkSession, java.lang.Boolean])

  /** Follows the queries that the session starts from now on. */
  private def attachTo(session: classic.SparkSession): Unit = attached.synchronized {
    if (attached.add(session)) session.streams.addListener(new Listener(session))
  }

  /** Spark calls this on the query's own thread, before its first batch. */
  private final class Listener(session: classic.SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
      session.streams.get(event.id) match {
        case query: StreamingQueryWrapper =>
          Fence.take(query.streamingQuery)
          AvailableNowEnd.letEnd(query.streamingQuery)
          OwnExchanges.giveTo(query.streamingQuery)
          ForeachBatchCheck.addTo(query.streamingQuery)
          IdleInputs.follow(query.streamingQuery)
        case _ =>
      }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()
    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit =
      Fence.release(event.id, event.runId)
  }
}
