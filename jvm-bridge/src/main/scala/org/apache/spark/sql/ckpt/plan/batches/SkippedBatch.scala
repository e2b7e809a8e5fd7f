package org.apache.spark.sql.ckpt.plan.batches

import org.apache.spark.internal.Logging
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.{SessionWindowStateStoreSaveExec, StateStoreWriter, StreamExecution}
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.ckpt.minor.store.CheckpointIds
import org.apache.spark.sql.ckpt.plan.queries.KeptState
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.OutputMode

/** Runs a batch for its state if the sink skips it, because the sink has a batch of this number already.
  *
  * A driver may die after the sink has a batch, and before the query has committed it. The batch then runs again with the
  * same rows, and a sink that knows it, such as Spark's sink of files, does nothing. In checkpoint format 2 nobody knows
  * then which state the batch has made: Spark fails by an assertion, at every start of the query. In format 1 the state
  * may be missing, or was made in another checkpoint. Source: `FileStreamSink.addBatch`,
  * `StateStoreWriter.getStateStoreCheckpointInfo`.
  *
  * A batch that was planned by this run has other rows than the sink's batch of that number. Skipping it would lose its
  * rows, so the query fails, unless the option `sinkAhead` says otherwise. Its plan is deleted, because the next start
  * would take it for the plan of the sink's batch.
  */
private[ckpt] object SkippedBatch extends Logging {

  /** Must be called on the query's own thread, before its first batch. */
  def follow(query: StreamExecution): Unit = query.sink match {
    case _: ForeachBatchSink[_] => // whether a function skips a batch or has a fault is unknown: see ForeachBatchCheck
    case sink: Sink if KeptState.isIn(query) =>
      val field = classOf[StreamExecution].getDeclaredField("sink")
      field.setAccessible(true)
      field.set(query, new FollowedSink(sink, query))
    case _ => // runs every batch, or has no state
  }

  /** The query's sink. The batches up to `lastPlanned` were planned by earlier runs, whose rows the sink may have. */
  private final class FollowedSink(sink: Sink, query: StreamExecution) extends Sink {
    private val lastPlanned = PlannedBatches.last(query)
    private lazy val newest = SinkBatches.newestIn(sink, Some(query.id.toString)) // before it gets batches of this run

    override def addBatch(batch: Long, rows: DataFrame): Unit = {
      val conf = QuerySession.of(query).sessionState.conf // the checkpoint's confs are set by now
      val isOurs = CkptStateStoreProvider.isChosen(conf)
      val isKnown = isOurs && newest.exists(_ >= batch)
      if (isKnown) requirePlanned(batch, conf)
      sink.addBatch(batch, rows)
      if (isKnown || (isOurs && writers.exists(hasNotRun(_, conf)))) {
        requirePlanned(batch, conf)
        logWarning(s"The sink of query ${query.id} skipped batch $batch: the batch runs only for its state")
        query.lastExecution.toRdd.foreach((_: InternalRow) => ())
      }
    }

    private def writers: Seq[StateStoreWriter] =
      query.lastExecution.executedPlan.collect { case writer: StateStoreWriter => writer }

    private def requirePlanned(batch: Long, conf: SQLConf): Unit =
      if (batch > lastPlanned && !SinkAhead.isAllowed(conf.getAllConfs)) {
        query.offsetLog.purgeAfter(batch - 1)
        throw SinkAhead.refusal(s"The sink of query ${query.id} ($sink) already has a batch $batch", batch, batch)
      }

    override def name(): String = sink.name()
    override def toString: String = sink.toString
  }

  private def hasNotRun(writer: StateStoreWriter, conf: SQLConf): Boolean =
    CheckpointIds.committedPartitions(writer, conf) match {
      case Some(partitions) => partitions.isEmpty
      case None => writer.metrics(if (StoreCount.isTold(writer)) StoreCount.Name else "ckptWriteRequests").value <= 0
    }
}

/** An operator's metric that counts the stores of tasks that have ended. */
private[plan] object StoreCount {
  val Name = "numStateStoreInstances"

  /** Session windows do not count them if all of them are output. */
  def isTold(writer: StateStoreWriter): Boolean = writer match {
    case sessions: SessionWindowStateStoreSaveExec => !sessions.outputMode.contains(OutputMode.Complete())
    case _ => true
  }
}
