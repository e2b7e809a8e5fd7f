package org.apache.spark.sql.ckpt.minor

import org.apache.hadoop.conf.Configuration

/** The id of the run of a query, as its tasks know it. */
private[ckpt] object RunId {

  /** What Spark calls it in the Hadoop conf of tasks from 4.0 on. */
  private final val Key = "sql.streaming.runId"

  /** Must be called on the query's own thread, before it plans a batch. */
  def announce(query: StreamExecution): Unit = QuerySession.of(query).conf.set(Key, query.runId.toString)

  /** None outside a query. */
  def of(hadoopConf: Configuration): Option[String] = Option(hadoopConf.get(Key))
}
