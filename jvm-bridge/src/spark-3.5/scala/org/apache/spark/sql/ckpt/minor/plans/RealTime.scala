package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.execution.SparkPlan

/** Real-time mode, in which operators can keep state from Spark 4.3 on. */
private[ckpt] object RealTime {
  def isIn(plan: SparkPlan): Boolean = false

  /** Not called: there is none. */
  def requireAllowed(plan: SparkPlan): Unit = ()
}
