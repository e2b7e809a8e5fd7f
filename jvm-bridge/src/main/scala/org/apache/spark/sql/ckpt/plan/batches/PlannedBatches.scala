package org.apache.spark.sql.ckpt.plan.batches

import java.io.FileNotFoundException

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.minor.{ErrorNotifier, MicroBatchExecution, OffsetSeqLog, StreamExecution}
import org.apache.spark.sql.ckpt.minor.query.{QuerySession, StartOffsets}
import org.apache.spark.sql.errors.QueryExecutionErrors

/** Batches that were planned before a run begins: by Spark's log of offsets, and by a restore.
  *
  * Spark resumes one planned batch when it starts, the last. A restore may carry over the plans of all batches that the
  * query had after the savepoint: entries of the log of offsets, in `_ckpt/replay/<batch>`. So the numbers of batches
  * keep the rows that a sink knows them by. When all planned batches are committed, the next plan is moved to Spark's log
  * before Spark looks for new rows, and Spark resumes it as at a start.
  */
private[ckpt] object PlannedBatches extends Logging {
  final val Folder = "_ckpt/replay"

  /** Must be called on the query's own thread, before its first batch. */
  def follow(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution => lastCarried(batches).foreach { last =>
        val field = classOf[MicroBatchExecution].getDeclaredField("errorNotifier")
        field.setAccessible(true)
        field.set(batches, new EachTrigger(batches, last, field.get(batches).asInstanceOf[ErrorNotifier]))
      }
    case _ =>
  }

  /** The last batch of a query that is planned; -1 if none is. */
  def last(query: StreamExecution): Long =
    math.max(query.offsetLog.getLatestBatchId().getOrElse(-1L), lastCarried(query).getOrElse(-1L))

  /** The same for a checkpoint on which no query runs. */
  def last(checkpoint: Path, conf: Configuration): Long =
    Seq("offsets", Folder).flatMap(each => lastIn(new Path(checkpoint, each), conf)).foldLeft(-1L)(math.max(_, _))

  private def lastCarried(query: StreamExecution): Option[Long] =
    lastIn(new Path(query.resolvedCheckpointRoot, Folder), QuerySession.of(query).sessionState.newHadoopConf())

  private def lastIn(log: Path, conf: Configuration): Option[Long] =
    try {
      val names = log.getFileSystem(conf).listStatus(log).map(_.getPath.getName)
      names.flatMap(name => Try(name.toLong).toOption).reduceOption(math.max(_, _))
    } catch { case _: FileNotFoundException => None }

  /** What a query's own thread asks at each trigger, before it looks for new rows. `last`: the last carried batch. */
  private final class EachTrigger(query: MicroBatchExecution, last: Long, failures: ErrorNotifier)
    extends ErrorNotifier {
    private val folder = new Path(query.resolvedCheckpointRoot, Folder).toString
    private lazy val plans = new OffsetSeqLog(QuerySession.of(query), folder)
    private var isLeft = true

    override def throwErrorIfExists(): Unit = {
      failures.throwErrorIfExists()
      super.throwErrorIfExists()
      if (isLeft) {
        val committed = query.commitLog.getLatestBatchId().getOrElse(-1L)
        isLeft = committed < last
        if (isLeft && query.offsetLog.getLatestBatchId().forall(_ <= committed)) takeUp(committed + 1)
        plans.purge(committed + 1)
      }
    }

    private def takeUp(batch: Long): Unit = {
      val plan = plans.get(batch).getOrElse(throw CkptErrors.format(
          s"$folder/$batch is missing, the plan of batch $batch. There are plans up to batch $last."))
      if (!query.offsetLog.add(batch, plan)) throw QueryExecutionErrors.concurrentStreamLogUpdate(batch)
      StartOffsets.read(query)
      logInfo(s"Query ${query.id} runs batch $batch with its offsets from before the query went back to a savepoint")
    }
  }
}
