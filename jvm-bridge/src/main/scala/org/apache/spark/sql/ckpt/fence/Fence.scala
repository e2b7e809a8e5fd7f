package org.apache.spark.sql.ckpt.fence

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import org.apache.hadoop.fs.Path

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.CkptException
import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution}
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.execution.streaming.continuous.ContinuousExecution

/** Says whether a run of a query is still the newest one on its checkpoint.
  *
  * Each run takes the next number, its ''epoch'', before it reads Spark's logs. It creates
  * `<checkpoint>/_ckpt/runs/<epoch>.run`, only if absent. A run that finds a higher number there is over: its driver was
  * thought dead, and another one has taken its place. It is over, too, if its own number is gone or belongs to another
  * run: somebody has deleted the checkpoint, and perhaps restored one in its place. Clocks have no part in this.
  *
  * `state_store/attempts/runs.py` reads and writes the same objects, and keeps as many of them.
  */
private[ckpt] final class Fence(val epoch: Long, runId: String, runs: Runs, end: CkptException => Unit = _ => ()) {
  @volatile private var own: Option[Runs.Stamp] = None

  /** Throws ConflictError, which names the successor, if this run is over; `LostCheckpointException`, if the checkpoint
    * is another one. One listing; the first time, a read, too.
    */
  def check(): Unit = {
    val found = runs.look()
    val newest = found.keys.foldLeft(0L)(math.max(_, _))
    val stamp = found.get(epoch)
    val isThere = stamp.isDefined && (own == stamp || runs.isOf(epoch, runId))
    if (isThere) own = stamp
    // The number of a run with many successors is deleted.
    else if (stamp.isDefined || newest < epoch) throw over(runs.loss(epoch))
    if (newest > epoch) throw over(runs.refusal(epoch, newest))
  }

  private def over(problem: CkptException): CkptException = {
    end(problem)
    problem
  }
}

private[ckpt] object Fence extends Logging {
  private final case class Taken(runId: UUID, checkpoint: Path, fence: Try[Fence])

  private val taken = new ConcurrentHashMap[UUID, Taken]

  /** The conf of a query's own session that has its epoch. */
  final val EpochKey = "spark.sql.streaming.ckpt.epoch"

  /** Takes the next epoch for a run. Call it on the query's own thread, before it reads its logs. A failure is thrown
    * when the query first lists one, or writes an entry: Spark ignores what its listeners throw.
    */
  def take(query: StreamExecution): Unit = {
    val checkpoint = new Path(query.resolvedCheckpointRoot)
    val conf = QuerySession.of(query).conf
    val runs = Try(new Runs(checkpoint, QuerySession.of(query).sessionState.newHadoopConf()))
    val fence = runs.map { runs =>
      val runId = query.runId.toString
      new Fence(runs.take(runId, driver(query.sparkSession.sparkContext)), runId, runs, endOf(query))
    }
    taken.put(query.id, Taken(query.runId, checkpoint, fence))
    fence match {
      case Success(own) =>
        conf.set(EpochKey, own.epoch.toString)
        logInfo(s"Run ${query.runId} of query ${query.id} has epoch ${own.epoch}")
      case Failure(moved: MovedException) =>
        // If it reads its logs through another class, its state servers find here why they must not commit.
        conf.set(EpochKey, moved.epoch.toString)
        logInfo(s"Run ${query.runId} of query ${query.id} is refused: ${moved.getMessage}")
      case Failure(problem) => logWarning(s"Run ${query.runId} of query ${query.id} has no epoch", problem)
    }
  }

  /** Throws IllegalArgumentException, which PySpark has a class for, if the query of the checkpoint goes on
    * elsewhere. Any other problem is left to `take`.
    *
    * Spark ends another run of the query in this application before the new one begins, so `take` comes too late for it.
    */
  def requireCurrent(session: ClassicSession, checkpoint: Path): Unit =
    Try(new Runs(checkpoint, session.sessionState.newHadoopConf()).requireCurrent()) match {
      case Failure(moved: MovedException) => throw new IllegalArgumentException(moved.getMessage, moved)
      case _ =>
    }

  /** Ends a query whose log is written on a thread that is not its own, where an error would only be logged. */
  private def endOf(query: StreamExecution): CkptException => Unit = query match {
    case continuous: ContinuousExecution => continuous.stopInNewThread
    case _ => _ => ()
  }

  /** The fence of the query that writes `path`: the calling thread's query, else the query whose logs have `path`.
    * None if there is none. Throws what `take` ran into.
    */
  def of(path: Path): Option[Fence] = {
    val its = queryOfThread match {
      case Some(query) => Option(taken.get(query))
      case None => taken.values.asScala.find(_.checkpoint == path.getParent.getParent)
    }
    its.map(_.fence.get)
  }

  /** Throws what `take` ran into for the query on whose thread this is called. */
  def requireTaken(): Unit = queryOfThread.flatMap(query => Option(taken.get(query))).foreach(_.fence.get)

  private def queryOfThread: Option[UUID] =
    SparkContext.getActive.flatMap(context => Option(context.getLocalProperty(StreamExecution.QUERY_ID_KEY)))
      .map(UUID.fromString)

  /** Forgets a run that has ended. The next run of the query may have begun. */
  def release(query: UUID, runId: UUID): Unit =
    taken.computeIfPresent(query, (_, last) => if (last.runId == runId) null else last)

  private def driver(context: SparkContext): String =
    s"${context.applicationId} on ${context.conf.get("spark.driver.host", "")}"
}
