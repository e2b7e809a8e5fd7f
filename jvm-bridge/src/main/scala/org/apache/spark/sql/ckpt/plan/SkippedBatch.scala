package org.apache.spark.sql.ckpt
package plan

import java.lang.reflect.Field

import org.apache.spark.internal.Logging
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.ckpt.minor.{
  CheckpointIds,
  QuerySession,
  SessionWindowStateStoreSaveExec,
  StateStoreWriter,
  StreamExecution
}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.OutputMode

/** Runs a batch for its state if the sink has the rows of the batch already and skips it.
  *
  * A driver may die after the sink has a batch, and before the query has committed it. The batch then runs again, and a
  * sink that knows it, such as Spark's sink of files, does nothing. In checkpoint format 2 nobody knows then which state
  * the batch has made: Spark fails by an assertion, at every start of the query. In format 1, the state may have been
  * made in another checkpoint, from which the query has come back. Source: `FileStreamSink.addBatch`,
  * `StateStoreWriter.getStateStoreCheckpointInfo`.
  */
private[ckpt] object SkippedBatch extends Logging {

  /** Must be called before the first batch of the query, which alone can have been run by another driver. */
  def runIn(query: StreamExecution): Unit = query.sink match {
    case _: ForeachBatchSink[_] => // whether a function skips a batch or has a fault is unknown: see ForeachBatchCheck
    case sink: Sink if isBegun(query) => fieldOf(query).set(query, new WholeBatch(sink, query))
    case _ => // runs every batch, or there is none to run again
  }

  /** Whether an earlier run has begun a batch that is not committed. */
  private def isBegun(query: StreamExecution): Boolean =
    query.offsetLog.getLatestBatchId().exists(_ > query.commitLog.getLatestBatchId().getOrElse(-1L))

  /** Runs the batch if this package keeps the query's state and no operator has run. */
  private def runIfSkipped(query: StreamExecution, batch: Long): Unit = {
    val conf = QuerySession.of(query).sessionState.conf // the checkpoint's confs are set by now
    val writers = query.lastExecution.executedPlan.collect { case writer: StateStoreWriter => writer }
    if (CkptStateStoreProvider.isChosen(conf) && writers.exists(hasNotRun(_, conf))) {
      logWarning(
        s"The sink of query ${query.id} skipped batch $batch, which an earlier run did not commit: the batch runs for " +
          "its state alone")
      query.lastExecution.toRdd.foreach((_: InternalRow) => ())
    }
  }

  private def hasNotRun(writer: StateStoreWriter, conf: SQLConf): Boolean =
    CheckpointIds.committedPartitions(writer, conf) match {
      case Some(partitions) => partitions.isEmpty
      case None => StoreCount.isTold(writer) && writer.metrics(StoreCount.Name).value == 0
    }

  private def fieldOf(query: StreamExecution): Field = {
    val field = classOf[StreamExecution].getDeclaredField("sink")
    field.setAccessible(true)
    field
  }

  /** The sink for one batch, after which the query has its own again. */
  private final class WholeBatch(sink: Sink, query: StreamExecution) extends Sink {
    override def addBatch(batch: Long, rows: DataFrame): Unit = {
      fieldOf(query).set(query, sink)
      sink.addBatch(batch, rows)
      runIfSkipped(query, batch)
    }

    override def name(): String = sink.name()
    override def toString: String = sink.toString
  }
}

/** The metric of an operator that has the number of stores of the tasks that have ended. */
private[plan] object StoreCount {
  val Name = "numStateStoreInstances"

  /** Session windows do not count them if all of them are output. */
  def isTold(writer: StateStoreWriter): Boolean = writer match {
    case sessions: SessionWindowStateStoreSaveExec => !sessions.outputMode.contains(OutputMode.Complete())
    case _ => true
  }
}
