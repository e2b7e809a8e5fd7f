package org.apache.spark.sql.ckpt.plan.batches

import org.apache.spark.sql.Dataset
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException, CkptStateStoreProvider}
import org.apache.spark.sql.ckpt.minor.{StateStoreWriter, StatefulOperatorStateInfo, StreamExecution}
import org.apache.spark.sql.ckpt.minor.plans.StoreNames
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.ckpt.minor.store.CheckpointIds
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink

/** Reports a `foreachBatch` function that has read only a part of its frame, or nothing.
  *
  * Partitions that it has not read are not processed, and their state has no next version. In checkpoint format 2,
  * Spark detects this after the function by an assertion without a message. In format 1 it commits the batch, and no
  * later batch can run. If this package keeps the query's state, a check runs right after the function, and its error
  * names the operator, the partitions and what to do. In format 1 the check counts tasks, not partitions: it passes a
  * function that reads one part several times, and any function for session windows in output mode complete.
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
    val plan = Option(query.lastExecution).map(_.executedPlan)
    plan.toSeq.flatMap(_.collect { case writer: StateStoreWriter => writer }).foreach { writer =>
      val info = writer.stateInfo.get
      // A limit has one partition, whatever number other operators have.
      val partitions = if (writer.outputPartitioning.numPartitions == 1) 1 else info.numPartitions
      CheckpointIds.committedPartitions(writer, conf) match {
        case Some(processed) =>
          val missing = (0 until partitions).filterNot(processed)
          if (missing.nonEmpty) throw refusal(batch, info, partitions, missing.length, s" (${few(missing)})")
        case None if StoreCount.isTold(writer) =>
          val tasks = writer.metrics(StoreCount.Name).value / StoreNames.of(writer).size
          if (tasks < partitions) throw refusal(batch, info, partitions, partitions - tasks, "")
        case None => ()
      }
    }
  }

  private def few(partitions: Seq[Int]): String =
    partitions.take(ShownPartitions).mkString(", ") + (if (partitions.length > ShownPartitions) ", ..." else "")

  private def refusal(
      batch: Long, info: StatefulOperatorStateInfo, partitions: Int, missing: Long, which: String): CkptException =
    CkptErrors.invalidInput(
      s"The foreachBatch function read only a part of its frame, or nothing: in batch $batch, $missing of " +
        s"$partitions partitions of operator ${info.operatorId} were not processed$which.",
      "Read all of the frame in each call, with a write, collect() or count() of the whole frame: take, head, first, " +
        "show and limit read only a part. If the function needs no rows of a batch, let it call count() anyway.")

  private val ShownPartitions = 10
}
