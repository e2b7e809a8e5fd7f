package org.apache.spark.sql.ckpt.minor

import org.apache.hadoop.conf.Configuration

/** The id of the run of a query, as its tasks know it. */
private[ckpt] object RunId {

  /** Nothing: Spark tells its tasks. */
  def announce(query: StreamExecution): Unit = ()

  /** None outside a query. */
  def of(hadoopConf: Configuration): Option[String] = Option(hadoopConf.get(StreamExecution.RUN_ID_KEY))
}
