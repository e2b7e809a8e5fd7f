package org.apache.spark.sql.ckpt.minor.query

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.ckpt.minor.StreamExecution

/** The id of the run of a query, as the Hadoop configuration of its stores has it.
  *
  * Spark gives the configuration of each store that it opens an id of a run: for an operator of a query that of the
  * query's run, for a reader of state a random one. The session of a query, which every configuration made there
  * contains, has the query's own. So equal ids tell the query's stores, whatever thread or session runs their tasks.
  * Source: `StateStoreProvider.createAndInit`, `StateScan.planInputPartitions`.
  */
private[ckpt] object RunId {

  /** A conf of the query's own session. */
  private[ckpt] final val Announced = "spark.sql.streaming.ckpt.runId"

  /** Must be called on the query's own thread, before it plans a batch. */
  def announce(query: StreamExecution): Unit = QuerySession.of(query).conf.set(Announced, query.runId.toString)

  /** None for a reader of state. */
  def of(hadoopConf: Configuration): Option[String] =
    Option(hadoopConf.get(Announced)).filter(_ == hadoopConf.get(StreamExecution.RUN_ID_KEY))
}
