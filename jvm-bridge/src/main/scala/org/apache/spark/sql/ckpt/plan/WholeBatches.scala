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

/** Says of a `foreachBatch` function that it has read a part of its frame only, or nothing.
  *
  * The partitions that it has not read are not processed, and their state has no next version. Spark notices it in
  * checkpoint format 2 by an assertion without words, after the function. The function of a query whose state is ours is
  * followed by the same question, and its answer names operator, partitions and what to do.
  */
private[ckpt] object WholeBatches {
  private val attached = Collections.newSetFromMap(new WeakHashMap[classic.SparkSession, java.lang.Boolean])

  /** Follows the queries that the session starts from now on. */
  def attachTo(session: classic.SparkSession): Unit = attached.synchronized {
    if (attached.add(session)) session.streams.addListener(new Listener(session))
  }

  /** Spark calls this on the query's own thread, before its first batch. */
  private final class Listener(session: classic.SparkSession) extends StreamingQueryListener {
    override def onQueryStarted(event: StreamingQueryListener.QueryStartedEvent): Unit =
      session.streams.get(event.id) match {
        case query: StreamingQueryWrapper => follow(query.streamingQuery)
        case _ =>
      }

    override def onQueryProgress(event: StreamingQueryListener.QueryProgressEvent): Unit = ()
    override def onQueryTerminated(event: StreamingQueryListener.QueryTerminatedEvent): Unit = ()
  }

  private def follow(query: StreamExecution): Unit = query.sink match {
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

  /** Asked after the function: only then has the query what its checkpoint has pinned. */
  private def isOurs(query: StreamExecution): Boolean = {
    val conf = query.sparkSessionForStream.sessionState.conf
    conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) == classOf[CkptStateStoreProvider].getName &&
    conf.getConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION) >= 2
  }

  /** The same question as Spark's assertion (`StateStoreWriter.getStateStoreCheckpointInfo`). */
  private def requireWhole(query: StreamExecution, batch: Long): Unit =
    Option(query.lastExecution).toSeq.flatMap(_.executedPlan.collect { case writer: StateStoreWriter => writer })
      .foreach { writer =>
        val info = writer.getStateInfo
        val processed = writer.checkpointInfoAccumulator.value.asScala.map(_.partitionId).toSet
        // A limit has one partition, whatever the number of those of others.
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
      s"the foreachBatch function has returned, and of batch $batch ${missing.length} of $partitions partitions of " +
        s"operator $operator were not processed ($few): it has read a part of its frame only, or nothing",
      "Read all of the frame in each call, by a write, collect() or count() of the whole of it: take, head, first, show " +
        "and limit read a part. If the function needs no rows of a batch, let it call count() all the same.")
  }

  private val ShownPartitions = 10
}
