package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.SparkException
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.execution.SparkPlan

/** Real-time mode, in which operators can keep state from Spark 4.3 on: before, no session is for it. */
private[ckpt] object RealTime {
  def isIn(plan: SparkPlan): Boolean = false
  def isIn(query: StreamExecution): Boolean = false
  def notEmpty(state: String): Throwable = SparkException.internalError(s"$state is not empty.")
  def requireAllowed(plan: SparkPlan): Unit = ()
}
