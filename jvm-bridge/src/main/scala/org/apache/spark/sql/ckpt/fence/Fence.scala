package org.apache.spark.sql.ckpt
package fence

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.{Failure, Success, Try}

import org.apache.hadoop.fs.Path

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/** Says whether a run of a query is still the newest one on its checkpoint.
  *
  * Each run takes the next number, its ''epoch'', before it reads Spark's logs. It creates
  * `<checkpoint>/_ckpt/runs/<epoch>.run`, only if absent. A run that finds a higher number there is over: its driver was
  * thought dead, and another one has taken its place. Clocks have no part in this.
  *
  * `state_store/attempts/winners.py` reads and writes the same objects, and keeps as many of them.
  */
private[ckpt] final class Fence private (val epoch: Long, runs: Runs) {

  /** Throws ConflictError, which names the successor, if this run is over. One listing. */
  def check(): Unit = {
    val newest = runs.list().lastOption.getOrElse(epoch)
    if (newest > epoch) throw runs.refusal(epoch, newest)
  }
}

private[ckpt] object Fence extends Logging {
  private final case class Taken(runId: UUID, fence: Try[Fence])

  private val taken = new ConcurrentHashMap[UUID, Taken]

  /** The conf of a query's own session that has its epoch. */
  final val EpochKey = "spark.sql.streaming.ckpt.epoch"

  /** Takes the next epoch for a run. Call it on the query's own thread, before it reads its logs. A failure is thrown
    * when the query first writes an entry: Spark ignores what its listeners throw.
    */
  def take(query: StreamExecution): Unit = {
    val fence = Try {
      val conf = query.sparkSessionForStream.sessionState.newHadoopConf()
      val runs = new Runs(new Path(query.resolvedCheckpointRoot), conf)
      new Fence(runs.take(query.runId.toString, driver(query.sparkSession.sparkContext)), runs)
    }
    taken.put(query.id, Taken(query.runId, fence))
    fence match {
      case Success(own) =>
        query.sparkSessionForStream.conf.set(EpochKey, own.epoch.toString)
        logInfo(s"Run ${query.runId} of query ${query.id} has epoch ${own.epoch}")
      case Failure(problem) => logWarning(s"Run ${query.runId} of query ${query.id} has no epoch", problem)
    }
  }

  /** The fence of the query on whose thread this is called; None on any other thread. Throws what `take` ran into. */
  def ofThread(): Option[Fence] =
    SparkContext.getActive.flatMap(context => Option(context.getLocalProperty(StreamExecution.QUERY_ID_KEY)))
      .flatMap(query => Option(taken.get(UUID.fromString(query)))).map(_.fence.get)

  /** Forgets a run that has ended. The next run of the query may have begun. */
  def release(query: UUID, runId: UUID): Unit =
    taken.computeIfPresent(query, (_, last) => if (last.runId == runId) null else last)

  private def driver(context: SparkContext): String =
    s"${context.applicationId} on ${context.conf.get("spark.driver.host", "")}"
}
