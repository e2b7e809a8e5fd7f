package org.apache.spark.sql.ckpt.plan

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.ckpt.fence.{Fence, PackLedger}
import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.ckpt.minor.query.RunId
import org.apache.spark.sql.ckpt.minor.rules.MinorRules
import org.apache.spark.sql.ckpt.plan.batches.{ForeachBatchCheck, PlannedBatches, SinkAhead, SkippedBatch}
import org.apache.spark.sql.ckpt.plan.inputs.IdleInputs
import org.apache.spark.sql.ckpt.plan.keyed.{
  InitialRows,
  KeyedFunctions,
  KeyedOperator,
  KeyedRules,
  NamedProgress,
  RealTimeCheck,
  ToldGroups,
  TransformWithState
}
import org.apache.spark.sql.ckpt.plan.queries.{
  AvailableNowEnd,
  DefaultStore,
  FirstBatch,
  JoinFormat,
  KeptState,
  OtherProvider,
  OwnExchanges,
  SavepointFolder,
  StartLog,
  UnfencedLogs
}
import org.apache.spark.sql.streaming.StreamingQueryListener

/** The extensions of a session with the jar; Spark finds them through the jar's list of services. */
private[ckpt] class Extensions extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    KeyedFunctions.addTo(extensions)
    extensions.injectPostHocResolutionRule(_ => KeyedOperator.Own)
    extensions.injectPostHocResolutionRule(_ => InitialRows.Own)
    extensions.injectPlannerStrategy(_ => KeyedOperator.Strategy)
    extensions.injectPlannerStrategy(_ => InitialRows.Strategy)
    extensions.injectColumnar(_ => RealTimeCheck) // Spark's list has the classes that TransformWithState replaces
    extensions.injectColumnar(_ => TransformWithState)
    extensions.injectColumnar(_ => NamedProgress.Rename)
    extensions.injectColumnar(_ => ToldGroups.Tell)
    extensions.injectColumnar(_ => IdleInputs.Check)
    MinorRules.addTo(extensions)
    extensions.injectCheckRule(_ => KeyedRules)
    extensions.injectCheckRule(session => new FollowQueries(session))
  }
}

/** Attaches to the queries of a session before each of them starts: Spark offers a jar no earlier hook. Refuses a query
  * in the folder of a savepoint, one that was rescaled to another checkpoint, and one whose sink has batches that its
  * checkpoint does not know.
  */
private[ckpt] final class FollowQueries(session: SparkSession) extends (LogicalPlan => Unit) {
  override def apply(plan: LogicalPlan): Unit = (session, plan) match {
    case (own: ClassicSession, query: WriteToStream) =>
      FollowQueries.attachTo(own)
      val checkpoint = new Path(query.resolvedCheckpointLocation)
      SavepointFolder.refuse(own, checkpoint)
      FirstBatch.refuse(own, checkpoint)
      UnfencedLogs.refuse(own)
      Fence.requireCurrent(own, checkpoint)
      SinkAhead.requirePlanned(own, query)
    case _ =>
  }
}

private[ckpt] object FollowQueries {

  /** Follows the queries that the session starts from now on. */
  private def attachTo(session: ClassicSession): Unit = synchronized {
    if (!session.streams.listListeners().exists(_.isInstanceOf[Listener])) {
      session.streams.addListener(new Listener(session))
    }
  }

  /** Spark calls this on the query's own thread, before its first batch. */
  private final class Listener(session: ClassicSession) extends StreamingQueryListener with Logging {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
      try {
        session.streams.get(event.id) match {
          case query: StreamingQueryWrapper => follow(query.streamingQuery)
          case _ =>
        }
      } catch {
        case stopped: InterruptedException =>
          logInfo(s"Query ${event.id} was stopped when it had just started", stopped)
      } finally {
        // A query that is stopped now is interrupted. Spark removes a listener in which it finds a thread interrupted,
        // and all later queries of the session would be without it. The query ends anyway.
        Thread.interrupted()
      }

    private def follow(query: StreamExecution): Unit = {
      DefaultStore.giveTo(query)
      RunId.announce(query)
      PackLedger.start()
      Fence.take(query)
      AvailableNowEnd.letEnd(query)
      OwnExchanges.giveTo(query)
      ForeachBatchCheck.addTo(query)
      SkippedBatch.follow(query)
      PlannedBatches.follow(query)
      IdleInputs.follow(query)
      FirstBatch.follow(query)
      OtherProvider.warnOf(query)
      KeptState.confsOf(query).foreach { confs =>
        StartLog.tell(query, confs)
        UnfencedLogs.warnOf(query, confs)
      }
      JoinFormat.keep(query)
    }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit =
      if (event.progress.batchId == 0) session.streams.get(event.progress.id) match {
        case query: StreamingQueryWrapper => FirstBatch.follow(query.streamingQuery)
        case _ =>
      }

    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit =
      Fence.release(event.id, event.runId)
  }
}
