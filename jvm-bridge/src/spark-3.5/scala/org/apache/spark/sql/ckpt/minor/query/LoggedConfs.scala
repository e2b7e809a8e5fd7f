package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.ckpt.minor.StreamExecution

private[ckpt] object LoggedConfs {

  /** The confs that the query's newest batch has recorded; none before its first batch. */
  def of(query: StreamExecution): Map[String, String] =
    query.offsetLog.getLatest().flatMap(_._2.metadata).fold(Map.empty[String, String])(_.conf)
}
