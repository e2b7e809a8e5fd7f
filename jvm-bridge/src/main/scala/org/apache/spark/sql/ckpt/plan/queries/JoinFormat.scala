package org.apache.spark.sql.ckpt.plan.queries

import org.apache.spark.sql.catalyst.plans.logical.Join
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.internal.SQLConf

/** Keeps the state format of a new stream-stream join as the session has it.
  *
  * Spark gives format 2 to a query with another provider than its own for RocksDB (applyJoinStateConfigGuardrails of
  * MicroBatchExecution), although this one has what later formats need. It does so when it prepares the query's plan, and
  * logs the confs afterwards.
  */
private[ckpt] object JoinFormat {
  private val Conf = SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION.key

  /** The first format that Spark changes. */
  private final val Changed = 3

  /** Must be called on the query's own thread, before its first batch. */
  def keep(query: StreamExecution): Unit = {
    val own = QuerySession.of(query)
    val wanted = own.conf.get(Conf)
    if (wanted.toInt >= Changed && isNewJoin(query) && CkptStateStoreProvider.isChosen(own.sessionState.conf)) {
      own.withActive(query.logicalPlan)
      own.conf.set(Conf, wanted)
    }
  }

  private def isNewJoin(query: StreamExecution): Boolean =
    query.analyzedPlan.exists {
      case join: Join => join.left.isStreaming && join.right.isStreaming
      case _ => false
    } && query.offsetLog.getLatestBatchId().isEmpty
}
