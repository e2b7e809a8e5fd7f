package org.apache.spark.sql.ckpt
package plan

import java.util.{Collections, WeakHashMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.{Dataset, classic}
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.StreamingQueryListener

/** Reports a `foreachBatch` function that has read only a part of its frame, or nothing.
  *
  * Partitions that it has not read are not processed, and their state has no next version. In checkpoint format 2,
  * Spark detects this after the function by an assertion without a message. If this package keeps the query's state,
  * the same check runs right after the function, and its error names the operator, the partitions and what to do.
  */
private[ckpt] object ForeachBatchCheck {
  private val attached = Collections.newSetFromMap(new WeakHashMap[classic.SparkSession, java.lang.Boolean])

  /** Checks the queries that the session starts from now on. */
  def attachTo(session: classic.SparkSession): Unit = attached.synchronized {
    if (attached.add(session)) session.streams.addListener(new Listener(session))
  }

  /** Spark calls this on the query's own thread, before its first batch. */
  private final class Listener(session: classic.SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
      session.streams.get(event.id) match {
        case query: StreamingQueryWrapper => addCheck(query.streamingQuery)
        case _ =>
      }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()
    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = ()
  }

  private def addCheck(query: StreamExecution): Unit = query.sink match {
    case sink: ForeachBatchSink[_] =>
      val field = classOf[ForeachBatchSink[_]].getDeclaredField("batchWriter")
      field.setAccessible(true)
      val write = field.get(sink).asInstanceOf[(Dataset[Any], Long) => Unit]
      field.set(sink,
        (batch: Dataset[Any], id: Long) => {
          write(batch, id)
          if (isOurs(query)) requireWhole(query, id)
        })
    case _ =>
  }

  /** Whether this package keeps the query's state. Valid after the function: the checkpoint's confs are set then. */
  private def isOurs(query: StreamExecution): Boolean = {
    val conf = query.sparkSessionForStream.sessionState.conf
    conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) == classOf[CkptStateStoreProvider].getName &&
    conf.getConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION) >= 2
  }

  /** The same check as Spark's assertion (`StateStoreWriter.getStateStoreCheckpointInfo`). */
  private def requireWhole(query: StreamExecution, batch: Long): Unit =
    Option(query.lastExecution).toSeq.flatMap(_.executedPlan.collect { case writer: StateStoreWriter => writer })
      .foreach { writer =>
        val info = writer.getStateInfo
        val processed = writer.checkpointInfoAccumulator.value.asScala.map(_.partitionId).toSet
        // A limit has one partition, whatever number other operators have.
        val isWhole = processed.size == info.numPartitions ||
          processed.size == 1 && writer.outputPartitioning.numPartitions == 1
        if (!isWhole) {
          val missing = (0 until info.numPartitions).filterNot(processed)
          throw refusal(batch, info.operatorId, missing, info.numPartitions)
        }
      }

  private def refusal(batch: Long, operator: Long, missing: Seq[Int], partitions: Int): CkptException = {
    val few = missing.take(ShownPartitions).mkString(", ") + (if (missing.length > ShownPartitions) ", ..." else "")
    CkptErrors.invalidInput(
      s"The foreachBatch function read only a part of its frame, or nothing: in batch $batch, ${missing.length} of " +
        s"$partitions partitions of operator $operator were not processed ($few).",
      "Read all of the frame in each call, with a write, collect() or count() of the whole frame: take, head, first, " +
        "show and limit read only a part. If the function needs no rows of a batch, let it call count() anyway.")
  }

  private val ShownPartitions = 10
}
