package org.apache.spark.sql.ckpt
package plan

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.StreamingQueryPlanTraverseHelper.collectFromUnfoldedPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec
import org.apache.spark.sql.execution.streaming.runtime.{MicroBatchExecution, MultipleWatermarkPolicy, WatermarkTracker}
import org.apache.spark.sql.internal.SQLConf

/** Spark's tracker, except that an input without rows for its `idleAfterMs` does not count until its next row.
  *
  * If all inputs are idle, those count that were the last to become idle: the watermark stays where it was then, however
  * late the tracker looks. Silence is known to have lasted until a batch without rows of the input was planned, or until
  * the query has looked for rows and found none. So a restart does not end it, and rows that arrive while the query is
  * down are there before the tracker looks.
  */
private[ckpt] final class IdleTracker(
    query: MicroBatchExecution,
    policy: MultipleWatermarkPolicy,
    inputs: Seq[WatermarkInput],
    log: InputTimesLog)
  extends WatermarkTracker(policy, query.logicalPlan) {

  private var times: Map[WatermarkInput, InputTimes] = {
    val committed = query.commitLog.getLatestBatchId()
    log.purgeAfter(committed.getOrElse(-1L))
    committed.fold(Map.empty[WatermarkInput, InputTimes])(log.read(_, inputs))
  }

  /** When the query has looked for rows last, if it has found none since it did. */
  private var lookedMs: Option[Long] = None

  /** Takes over the batch that has run; after return, its times are durable. Spark commits the batch after this. */
  override def updateWatermark(executedPlan: SparkPlan): Unit = synchronized {
    super.updateWatermark(executedPlan)
    val batch = query.lastExecution
    val nowMs = batch.offsetSeqMetadata.batchTimestampMs
    val withRows = collectFromUnfoldedPlan(executedPlan) {
      case node: EventTimeWatermarkExec if node.eventTimeStats.value.count > 0 => node.nodeId
    }.toSet
    times = inputs.map { input =>
      val before = times.getOrElse(input, InputTimes(None, nowMs))
      val seenMs = if (withRows(input.nodeId)) nowMs else before.seenMs
      input -> InputTimes((before.watermarkMs ++ watermarkMap(input.nodeId)).maxOption, seenMs)
    }.toMap
    log.write(batch.currentBatchId, times)
    lookedMs = None
    moveWatermark(nowMs)
  }

  /** Moves the watermark if inputs have become idle although no batch has run. */
  def beforeTrigger(): Unit = synchronized {
    val beforeMs = currentWatermark
    if (inputs.forall(times.contains)) lookedMs.foreach(moveWatermark) // a new input counts before its first batch
    lookedMs = Some(query.triggerClock.getTimeMillis())
    if (currentWatermark != beforeMs) Option(query.lastExecution).foreach { batch =>
      // Spark has asked whether the next batch is to run with the watermark of before, and takes no other for it now.
      batch.watermarkPropagator.purge(batch.currentBatchId + 1)
    }
  }

  private def moveWatermark(nowMs: Long): Unit = {
    val idleFrom = inputs.map(input => input -> input.idleAfterMs.fold(Long.MaxValue)(times(input).seenMs + _))
    val last = math.min(nowMs + 1, idleFrom.map(_._2).max)
    val counting = idleFrom.collect { case (input, fromMs) if fromMs >= last => input }
    val watermarkMs = policy.chooseGlobalWatermark(counting.map(times(_).watermarkMs.getOrElse(0L)))
    if (watermarkMs > currentWatermark) setWatermark(watermarkMs)
  }
}

private[ckpt] object IdleTracker {

  /** Replaces the tracker of a query, after Spark has read the query's checkpoint into it. */
  def putInto(query: MicroBatchExecution): IdleTracker = {
    val field = classOf[MicroBatchExecution].getDeclaredField("watermarkTracker")
    field.setAccessible(true)
    val session = query.sparkSessionForStream
    val policy = MultipleWatermarkPolicy(session.conf.get(SQLConf.STREAMING_MULTIPLE_WATERMARK_POLICY.key))
    val log = new InputTimesLog(session, new Path(query.resolvedCheckpointRoot, InputTimesLog.Folder).toString)
    val tracker = new IdleTracker(query, policy, IdleInputs.inputsOf(query.analyzedPlan), log)
    tracker.setWatermark(field.get(query).asInstanceOf[WatermarkTracker].currentWatermark)
    field.set(query, tracker)
    tracker
  }
}
