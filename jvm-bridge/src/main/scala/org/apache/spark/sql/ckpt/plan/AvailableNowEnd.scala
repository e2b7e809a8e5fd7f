package org.apache.spark.sql.ckpt
package plan

import java.util.{Collections, WeakHashMap}

import org.apache.spark.sql.catalyst.plans.logical.ProcessingTimeTimeout
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.AvailableNowTrigger
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.StreamingQueryListener

/** Lets a query with the trigger `availableNow` end although it has time-outs in processing time.
  *
  * Spark runs a batch without data after every batch of such a query, for ever. For this run of this query alone, Spark
  * is told to run none: time-outs then fire in batches with data, and the rest wait for the next run.
  */
private[ckpt] object AvailableNowEnd {
  private val attached = Collections.newSetFromMap(new WeakHashMap[SparkSession, java.lang.Boolean])

  def attachTo(session: SparkSession): Unit = attached.synchronized {
    if (attached.add(session)) session.streams.addListener(new Listener(session))
  }

  /** Spark calls this on the query's own thread, before it reads whether to run batches without data. */
  private final class Listener(session: SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
      session.streams.get(event.id) match {
        case query: StreamingQueryWrapper if neverEnds(query.streamingQuery) =>
          query.streamingQuery.sparkSessionForStream.conf.set(
            SQLConf.STREAMING_NO_DATA_MICRO_BATCHES_ENABLED.key, "false")
        case _ =>
      }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()
    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = ()
  }

  private def neverEnds(query: StreamExecution): Boolean =
    query.trigger == AvailableNowTrigger && query.analyzedPlan.exists {
      case keyed: KeyedOperator => keyed.timeout == ProcessingTimeTimeout
      case _ => false
    }
}
