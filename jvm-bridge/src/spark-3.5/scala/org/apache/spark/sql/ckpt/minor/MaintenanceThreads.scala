package org.apache.spark.sql.ckpt.minor

private[ckpt] object MaintenanceThreads {

  /** Spark 3.5 has one thread for all stores of an executor, which must not wait for uploads. */
  def isOne: Boolean = true
}
