package org.apache.spark.sql.ckpt.fence

import java.io.{FileNotFoundException, IOException}
import java.time.Instant
import java.time.temporal.ChronoUnit

import scala.annotation.tailrec
import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.ckpt.CkptException
import org.apache.spark.sql.ckpt.settings.Json

/** A rescaling that moves the query of a checkpoint to another one, as recorded in the newest number of a run.
  *
  * `target`: the other checkpoint. `movedAtMs`: when the query had gone there for good; 0 if it has not yet, or if the
  * driver of the rescaling died before it recorded that. `pyspark_ckpt/running/turns.py` writes both.
  */
private[ckpt] final case class Move(target: String, movedAtMs: Long) {
  def isDone: Boolean = movedAtMs > 0
}

private[ckpt] object Move {

  /** The move that a number records, if there is one. */
  def of(run: JsonNode): Option[Move] =
    Option(run.path("moves_to").asText("")).filter(_.nonEmpty).map(Move(_, run.path("moved_at_ms").asLong(0)))
}

/** The number `epoch` says that the query of a checkpoint goes on elsewhere. */
private[ckpt] final class MovedException(val epoch: Long, message: String, hint: String)
  extends CkptException("ConflictError", message, hint, false, null)

/** Decides whether a query may be started on a checkpoint from which a rescaling was to move it.
  *
  * It may if the new checkpoint is gone, or has nothing new: the rescaling has failed, or its driver has died. It may,
  * too, while both checkpoints have the same plan of a first batch that is not committed. The rescaling copies the plan
  * before it goes back, so a sink that has rows of the batch gets the same ones.
  *
  * Until the query is first started on the new checkpoint, that one has a number, too, which names the old one.
  */
private[ckpt] final class CurrentCheckpoint(here: Path, conf: Configuration) {
  import CurrentCheckpoint._

  /** Throws `MovedException` if the query goes on elsewhere; StorageError if that is unknown. `epoch`: the number with
    * the move. `begunAtMs`: when the rescaling began.
    */
  def requireCurrent(epoch: Long, move: Move, begunAtMs: Long): Unit =
    if (move.isDone) {
      val now = current(move, MaxMoves)
      val where = if (now == move.target) "goes on there" else s"is now on $now"
      throw refusal(epoch, s"it was rescaled to ${move.target} at ${utc(move.movedAtMs)}, and $where", now)
    } else {
      val begun = s"a rescaling between it and ${move.target} began at ${utc(begunAtMs)}"
      Try(progressOn(new Path(move.target))) match {
        case Success(None) =>
        case Success(Some(progress)) =>
          throw refusal(epoch, s"$begun, and the query has $progress there", move.target)
        case Failure(problem @ (_: IOException | _: RuntimeException)) => throw unknown(begun, move.target, problem)
        case Failure(other) => throw other
      }
    }

  /** What the query has done on the other checkpoint that this one does not have; None if nothing. */
  private def progressOn(target: Path): Option[String] =
    if (!idOf(target, conf).exists(idOf(here, conf).contains)) None
    else {
      val (planned, committed) = (last(target, "offsets"), last(target, "commits"))
      if (committed > last(here, "commits")) Some(s"committed batch $committed")
      else if (planned > last(here, "offsets")) Some(s"begun batch $planned, which its sink may have,")
      else None
    }

  /** Where a query that has moved is now, as far as that can be seen: it is for a message. */
  @tailrec
  private def current(move: Move, steps: Int): String =
    Try(new Runs(new Path(move.target), conf).lastMove).toOption.flatten.filter(_.isDone && steps > 0) match {
      case Some(next) => current(next, steps - 1)
      case None => move.target
    }

  private def refusal(epoch: Long, what: String, target: String): MovedException =
    new MovedException(epoch, s"The query is not started on $here: $what.", hint(target))

  private def unknown(begun: String, target: String, problem: Throwable): CkptException = new CkptException(
    "StorageError",
    s"The query is not started on $here: $begun. It is unknown whether the query goes on there, because that " +
      s"checkpoint cannot be read: $problem",
    s"Let this session reach it, or call rescale_query() again, which finishes the rescaling. ${hint(target)}",
    true, problem)

  private def hint(target: String): String =
    s"Start the program with checkpointLocation $target. On $here it would process rows again. If that is what you " +
      s"want, start it on a branch: pyspark-ckpt checkpoint branch $here NEW_CHECKPOINT"

  /** The last entry of a log of Spark; -1 if there is none. */
  private def last(checkpoint: Path, log: String): Long =
    try {
      val entries = checkpoint.getFileSystem(conf).listStatus(new Path(checkpoint, log))
      entries.flatMap(each => Try(each.getPath.getName.toLong).toOption).foldLeft(-1L)(math.max(_, _))
    } catch { case _: FileNotFoundException => -1L }
}

private[ckpt] object CurrentCheckpoint {

  /** How many later rescalings are followed. */
  private final val MaxMoves = 16

  /** The id of the query of a checkpoint; None if no query has been there. */
  def idOf(checkpoint: Path, conf: Configuration): Option[String] =
    try {
      val input = new LogFiles(checkpoint, conf).open(new Path(checkpoint, "metadata"))
      try Option(Json.mapper.readTree(input: java.io.InputStream).path("id").asText(null))
      finally input.close()
    } catch { case _: FileNotFoundException => None }

  private def utc(ms: Long): String = Instant.ofEpochMilli(ms).truncatedTo(ChronoUnit.SECONDS).toString
}
