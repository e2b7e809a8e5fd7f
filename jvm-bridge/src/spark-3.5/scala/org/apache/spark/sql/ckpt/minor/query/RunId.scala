package org.apache.spark.sql.ckpt.minor.query

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.ckpt.minor.StreamExecution

/** The id of the run of a query, as the Hadoop configuration of its stores has it. Nothing else opens stores. */
private[ckpt] object RunId {

  /** What Spark calls it in the Hadoop conf of tasks from 4.0 on. */
  private final val Key = "sql.streaming.runId"

  /** Must be called on the query's own thread, before it plans a batch. */
  def announce(query: StreamExecution): Unit = QuerySession.of(query).conf.set(Key, query.runId.toString)

  /** None if the query was not announced. */
  def of(hadoopConf: Configuration): Option[String] = Option(hadoopConf.get(Key))
}
