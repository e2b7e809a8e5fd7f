package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.ckpt.minor.{LoggedConfs, StatefulNodes, StreamExecution}
import org.apache.spark.sql.internal.SQLConf

/** Where a query that has just started keeps its state. */
private[ckpt] object KeptState {
  private val Provider = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  final val Format = "spark.sql.streaming.stateStore.checkpointFormatVersion"

  /** The confs that count: what a checkpoint has recorded stands. */
  def confs(query: StreamExecution): Map[String, String] =
    query.sparkSession.sessionState.conf.getAllConfs ++ LoggedConfs.of(query)

  /** Whether the query has state, and keeps it here. */
  def isOf(query: StreamExecution): Boolean =
    confs(query).get(Provider).contains(classOf[CkptStateStoreProvider].getName) &&
      query.analyzedPlan.exists(node => StatefulNodes.isOne(node) || node.isInstanceOf[KeyedOperator])
}
