package org.apache.spark.sql.ckpt.plan.queries

import org.apache.spark.sql.catalyst.plans.logical.ProcessingTimeTimeout
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.plans.TransformWithStateNodes
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.ckpt.plan.keyed.KeyedOperator
import org.apache.spark.sql.execution.streaming.AvailableNowTrigger
import org.apache.spark.sql.internal.SQLConf

/** Lets a query with the trigger `availableNow` end although it has timers in processing time, on this store.
  *
  * Spark runs a batch without data after every batch of such a query, for ever. For this run of this query alone, Spark
  * is told to run none: timers then fire in batches with data, and the rest wait for the next run.
  */
private[ckpt] object AvailableNowEnd {

  /** Must be called on the query's own thread, before it reads whether to run batches without data. */
  def letEnd(query: StreamExecution): Unit = if (neverEnds(query)) {
    QuerySession.of(query).conf.set(SQLConf.STREAMING_NO_DATA_MICRO_BATCHES_ENABLED.key, "false")
  }

  private def neverEnds(query: StreamExecution): Boolean =
    query.trigger == AvailableNowTrigger && query.analyzedPlan.exists {
      case keyed: KeyedOperator => keyed.timeout == ProcessingTimeTimeout
      case node => TransformWithStateNodes.isOfProcessingTime(node) && isOurs(query)
    }

  private def isOurs(query: StreamExecution): Boolean =
    CkptStateStoreProvider.isChosen(QuerySession.of(query).sessionState.conf)
}
