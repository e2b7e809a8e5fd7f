package org.apache.spark.sql.ckpt.minor.query

import java.lang.reflect.InvocationTargetException

import org.apache.spark.sql.ckpt.minor.MicroBatchExecution

/** What Spark reads from a checkpoint before a query's first batch: the planned batch, if it is not committed. */
private[ckpt] object StartOffsets {
  private val context = classOf[MicroBatchExecution].getMethod("getLatestExecutionContext")
  private val populate =
    classOf[MicroBatchExecution].getDeclaredMethods.filter(_.getName == "populateStartOffsets").head
  populate.setAccessible(true)

  /** Reads it once more in a running query, for the batch that the query is about to plan. The watermark stays. */
  def read(query: MicroBatchExecution): Unit = {
    val tracker = MinorWatermarkTracker.of(query)
    try populate.invoke(query, context.invoke(query), QuerySession.of(query))
    catch { case wrapped: InvocationTargetException => throw wrapped.getCause }
    MinorWatermarkTracker.put(query, tracker)
  }
}
