package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec
import org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist

/** Real-time mode. */
private[ckpt] object RealTime {

  /** Whether the rows of a plan come as long as its batch lasts. */
  def isIn(plan: SparkPlan): Boolean = plan.exists(_.isInstanceOf[RealTimeStreamScanExec])

  /** Raises Spark's error for operators that are not in its list. */
  def requireAllowed(plan: SparkPlan): Unit =
    RealTimeModeAllowlist.checkAllowedPhysicalOperator(plan, throwException = true)
}
