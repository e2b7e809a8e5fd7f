package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution}

private[ckpt] object QuerySession {
  private val field = classOf[StreamExecution].getDeclaredField("sparkSessionForStream")
  field.setAccessible(true)

  /** The session of its own in which a query runs. Spark hides it up to 4.0. */
  def of(query: StreamExecution): ClassicSession = field.get(query).asInstanceOf[ClassicSession]
}
