package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution}

private[ckpt] object QuerySession {

  /** The session of its own in which a query runs. */
  def of(query: StreamExecution): ClassicSession = query.sparkSessionForStream
}
