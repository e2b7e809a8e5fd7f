package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.Dataset
import org.apache.spark.sql.ckpt.minor.{CheckpointIds, QuerySession, StateStoreWriter, StreamExecution}
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink

/** Reports a `foreachBatch` function that has read only a part of its frame, or nothing.
  *
  * Partitions that it has not read are not processed, and their state has no next version. In checkpoint format 2,
  * Spark detects this after the function by an assertion without a message. If this package keeps the query's state,
  * the same check runs right after the function, and its error names the operator, the partitions and what to do.
  */
private[ckpt] object ForeachBatchCheck {

  /** Must be called before the first batch of the query. */
  def addTo(query: StreamExecution): Unit = query.sink match {
    case sink: ForeachBatchSink[_] =>
      val field = classOf[ForeachBatchSink[_]].getDeclaredField("batchWriter")
      field.setAccessible(true)
      val write = field.get(sink).asInstanceOf[(Dataset[Any], Long) => Unit]
      field.set(sink,
        (batch: Dataset[Any], id: Long) => {
          write(batch, id)
          // The checkpoint's confs are set by now.
          if (CkptStateStoreProvider.isChosen(QuerySession.of(query).sessionState.conf)) requireWhole(query, id)
        })
    case _ =>
  }

  /** The same check as Spark's assertion (`StateStoreWriter.getStateStoreCheckpointInfo`). */
  private def requireWhole(query: StreamExecution, batch: Long): Unit = {
    val conf = QuerySession.of(query).sessionState.conf
    Option(query.lastExecution).toSeq.flatMap(_.executedPlan.collect { case writer: StateStoreWriter => writer })
      .flatMap(writer => CheckpointIds.committedPartitions(writer, conf).map(writer -> _)).foreach {
        case (writer, processed) =>
          val info = writer.stateInfo.get
          // A limit has one partition, whatever number other operators have.
          val isWhole = processed.size == info.numPartitions ||
            processed.size == 1 && writer.outputPartitioning.numPartitions == 1
          if (!isWhole) {
            val missing = (0 until info.numPartitions).filterNot(processed)
            throw refusal(batch, info.operatorId, missing, info.numPartitions)
          }
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
