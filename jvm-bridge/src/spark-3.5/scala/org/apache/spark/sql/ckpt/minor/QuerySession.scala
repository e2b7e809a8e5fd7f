package org.apache.spark.sql.ckpt.minor

private[ckpt] object QuerySession {

  /** The session of its own in which a query runs. Spark protects it up to 4.0. */
  def of(query: StreamExecution): ClassicSession =
    classOf[StreamExecution].getMethod("sparkSessionForStream").invoke(query).asInstanceOf[ClassicSession]
}
