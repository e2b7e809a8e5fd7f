package org.apache.spark.sql.ckpt.plan.queries

import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.internal.SQLConf

/** Keeps the state of a query here although its session names no provider.
  *
  * Spark starts no query in real-time mode from a session that names one. It gives the query's own session its store, if
  * that has none by the time of the first batch.
  */
private[ckpt] object DefaultStore {

  /** Must be called on the query's own thread, before its first batch. */
  def giveTo(query: StreamExecution): Unit = {
    val own = QuerySession.of(query)
    if (CkptStateStoreProvider.isDefault(query.sparkSession.sessionState.conf)) {
      own.conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, classOf[CkptStateStoreProvider].getName)
    }
  }
}
