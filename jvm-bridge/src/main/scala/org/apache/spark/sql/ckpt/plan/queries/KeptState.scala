package org.apache.spark.sql.ckpt.plan.queries

import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.plans.StatefulNodes
import org.apache.spark.sql.ckpt.minor.query.LoggedConfs
import org.apache.spark.sql.ckpt.plan.keyed.KeyedOperator
import org.apache.spark.sql.internal.SQLConf

/** Whether a query has state, and where a query that has just started keeps it. */
private[ckpt] object KeptState {
  private val Provider = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  final val Format = "spark.sql.streaming.stateStore.checkpointFormatVersion"

  def isIn(query: StreamExecution): Boolean =
    query.analyzedPlan.exists(node => StatefulNodes.isOne(node) || node.isInstanceOf[KeyedOperator])

  /** The confs that count for a query that keeps state here: what its checkpoint has recorded stands. None for another
    * query. Reads the newest entry of the log of offsets.
    */
  def confsOf(query: StreamExecution): Option[Map[String, String]] =
    Some(query).filter(isIn)
      .map(_.sparkSession.sessionState.conf.getAllConfs ++ LoggedConfs.of(query))
      .filter(_.get(Provider).contains(classOf[CkptStateStoreProvider].getName))
}
