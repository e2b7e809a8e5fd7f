package org.apache.spark.sql.ckpt.minor

private[ckpt] object MaintenanceThreads {

  /** Spark has as many threads for maintenance as `numStateStoreMaintenanceThreads` says. */
  def isOne: Boolean = false
}
