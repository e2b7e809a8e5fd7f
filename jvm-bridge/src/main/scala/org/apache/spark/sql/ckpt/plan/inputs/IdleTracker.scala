package org.apache.spark.sql.ckpt.plan.inputs

import java.time.Instant

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.ckpt.minor.{
  MicroBatchExecution,
  MultipleWatermarkPolicy,
  StreamingExecutionRelation,
  StreamingTableRelation
}
import org.apache.spark.sql.ckpt.minor.query.{MinorWatermarkTracker, QuerySession, WatermarkNodes}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.AvailableNowTrigger
import org.apache.spark.sql.internal.SQLConf

/** Spark's tracker, except that an input without rows for its `idleAfterMs` does not count until its next row.
  *
  * If all inputs are idle, the last ones to become idle count: the watermark stays where it was then, however late the
  * tracker looks. Silence is known to last until a batch without rows of the input was planned, or until the query has
  * looked for rows and found none, but not beyond `untilMs`. So a restart does not end silence, and rows that arrive
  * while the query is down are there before the tracker looks.
  */
private[ckpt] final class IdleTracker(
    query: MicroBatchExecution,
    policy: MultipleWatermarkPolicy,
    inputs: Seq[WatermarkInput],
    log: InputTimesLog,
    untilMs: Long)
  extends MinorWatermarkTracker(policy, query.logicalPlan) {

  private var times: Map[WatermarkInput, InputTimes] = {
    val committed = query.commitLog.getLatestBatchId()
    log.purgeAfter(committed.getOrElse(-1L))
    committed.fold(Map.empty[WatermarkInput, InputTimes])(log.read(_, inputs))
  }

  /** When the query last looked for rows, if it has found none since. */
  private var lookedMs: Option[Long] = None

  private var idle = Set.empty[WatermarkInput]

  /** Takes over the batch that has run; after return, its times are durable. Spark commits the batch after this. */
  override def updateWatermark(executedPlan: SparkPlan): Unit = synchronized {
    super.updateWatermark(executedPlan)
    val batch = query.lastExecution
    val nowMs = math.min(batch.offsetSeqMetadata.batchTimestampMs, untilMs)
    val withRows = WatermarkNodes.withRows(executedPlan)
    times = inputs.map { input =>
      val before = times.getOrElse(input, InputTimes(None, nowMs))
      val seenMs =
        if (withRows.contains(input.nodeId)) nowMs else math.min(before.seenMs, nowMs) // the clock may go back
      input -> InputTimes((before.watermarkMs ++ withRows.get(input.nodeId)).reduceOption(_ max _), seenMs)
    }.toMap
    log.write(batch.currentBatchId, times)
    lookedMs = None
    moveWatermark(nowMs)
  }

  /** Moves the watermark if inputs have become idle although no batch has run. */
  def beforeTrigger(): Unit = synchronized {
    val beforeMs = currentWatermark
    if (inputs.forall(times.contains)) lookedMs.foreach(moveWatermark) // a new input counts before its first batch
    lookedMs = Some(math.min(query.triggerClock.getTimeMillis(), untilMs))
    if (currentWatermark != beforeMs) Option(query.lastExecution).foreach { batch =>
      // Spark has asked whether the next batch is to run with the watermark of before, and takes no other for it now.
      batch.watermarkPropagator.purge(batch.currentBatchId + 1)
    }
  }

  private def moveWatermark(nowMs: Long): Unit = {
    val idleFrom = inputs.map(input => input -> input.idleAfterMs.fold(Long.MaxValue)(times(input).seenMs + _))
    logIdle(idleFrom.collect { case (input, fromMs) if fromMs <= nowMs => input }.toSet)
    val last = math.min(nowMs + 1, idleFrom.map(_._2).max)
    val counting = idleFrom.collect { case (input, fromMs) if fromMs >= last => input }
    val watermarkMs = policy.chooseGlobalWatermark(counting.map(times(_).watermarkMs.getOrElse(0L)))
    if (watermarkMs > currentWatermark) setWatermark(watermarkMs)
  }

  private def logIdle(idleNow: Set[WatermarkInput]): Unit = {
    (idleNow -- idle).foreach { input =>
      logInfo(s"${describe(input)} is idle: it has had no rows since ${Instant.ofEpochMilli(times(input).seenMs)}")
    }
    (idle -- idleNow).foreach(input => logInfo(s"${describe(input)} has rows again, and counts for the watermark"))
    idle = idleNow
  }

  private def describe(input: WatermarkInput): String = {
    val leaves = WatermarkNodes.of(query.logicalPlan).collect { case (input.nodeId, node) => node }
      .flatMap(_.collectLeaves())
    val sources = leaves.collect {
      case relation: StreamingExecutionRelation => relation.source
      case relation: StreamingTableRelation => relation.stream
    }
    s"Query ${query.id}: the input with the event time ${input.name.column} of ${sources.mkString(", ")}"
  }
}

private[ckpt] object IdleTracker {

  /** Replaces the tracker of a query, from the first trigger on.
    *
    * A run with `availableNow` finds no rows that came after `startedMs`, however long it lasts.
    */
  def putInto(query: MicroBatchExecution, startedMs: Long): IdleTracker = {
    val before = MinorWatermarkTracker.of(query)
    val session = QuerySession.of(query)
    val policy = MultipleWatermarkPolicy(session.conf.get(SQLConf.STREAMING_MULTIPLE_WATERMARK_POLICY.key))
    val log = new InputTimesLog(session, new Path(query.resolvedCheckpointRoot, InputTimesLog.Folder).toString)
    val untilMs = if (query.trigger == AvailableNowTrigger) startedMs else Long.MaxValue
    val tracker = new IdleTracker(query, policy, IdleInputs.inputsOf(query.analyzedPlan), log, untilMs)
    tracker.setWatermark(before.currentWatermark)
    MinorWatermarkTracker.put(query, tracker)
    tracker
  }
}
