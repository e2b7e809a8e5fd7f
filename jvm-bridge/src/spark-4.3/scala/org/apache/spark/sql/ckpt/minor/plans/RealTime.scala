package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.datasources.v2.RealTimeStreamScanExec
import org.apache.spark.sql.execution.streaming.RealTimeTrigger
import org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors

/** Real-time mode. */
private[ckpt] object RealTime {

  /** Whether the rows of a plan come as long as its batch lasts. */
  def isIn(plan: SparkPlan): Boolean = plan.exists(_.isInstanceOf[RealTimeStreamScanExec])

  def isIn(query: StreamExecution): Boolean = query.trigger.isInstanceOf[RealTimeTrigger]

  /** Spark's error for a folder that has state before a query's first batch. */
  def notEmpty(state: String): Throwable = StateStoreErrors.streamingStateCheckpointLocationNotEmpty(state)

  /** Raises Spark's error for operators that are not in its list. */
  def requireAllowed(plan: SparkPlan): Unit =
    RealTimeModeAllowlist.checkAllowedPhysicalOperator(plan, throwException = true)
}
