package org.apache.spark.sql.ckpt.fence

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.annotation.tailrec
import scala.util.control.NonFatal

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, Path}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.settings.{Json, OptionTable}

/** The checkpoint of a run was deleted. What is in its place, if anything, belongs to others. */
private[ckpt] final class LostCheckpointException(message: String)
  extends CkptException(
    "ConflictError",
    message,
    "End this driver. To continue with the present checkpoint, start the query again.",
    false, null)

/** The numbers of the runs of a query, as objects in its checkpoint: see `Fence`. */
private[ckpt] final class Runs(checkpoint: Path, conf: Configuration) extends Logging {
  import Runs._

  private val folder = new Path(checkpoint, "_ckpt/runs")
  private val files = new LogFiles(folder, conf)

  /** The numbers that are there, in ascending order. */
  def list(): Seq[Long] = look().keys.toSeq.sorted

  /** The numbers that are there, each with a stamp that changes if its object is replaced. One listing. */
  def look(): Map[Long, Stamp] =
    try {
      files.list(folder).flatMap { each =>
        Option(each.getPath.getName).collect { case Name(epoch) =>
          epoch.toLong -> Stamp(each.getModificationTime, each.getLen)
        }
      }.toMap
    } catch { case _: FileNotFoundException => Map.empty }

  /** Takes the next number for a run, durably. Runs that do so at the same time get different numbers.
    *
    * If the newest number says that the query was moved, or was to be moved, to another checkpoint, this throws what
    * `CurrentCheckpoint` does.
    */
  @tailrec
  def take(runId: String, driver: String): Long = {
    val found = look()
    val last = found.keys.foldLeft(0L)(math.max(_, _))
    if (last >= MaxEpoch) {
      throw CkptErrors.format(s"${path(last)} has the highest number of a run, so no run can follow.")
    }
    found.get(last).foreach(requireCurrent(last, _))
    val epoch = last + 1
    if (create(epoch, content(runId, driver)) && isRead(epoch)) epoch else take(runId, driver)
  }

  /** Throws what `CurrentCheckpoint` does if the newest number says that the query was, or was to be, moved elsewhere. */
  def requireCurrent(): Unit = {
    val found = look()
    found.keys.reduceOption(math.max(_, _)).foreach(last => requireCurrent(last, found(last)))
  }

  private def requireCurrent(last: Long, stamp: Stamp): Unit =
    moveOf(last).foreach(new CurrentCheckpoint(checkpoint, conf).requireCurrent(last, _, stamp.modifiedMs))

  /** The move of the newest number, if a rescaling has written it. */
  def lastMove: Option[Move] = list().lastOption.flatMap(moveOf)

  private def moveOf(epoch: Long): Option[Move] =
    try Move.of(read(epoch))
    catch {
      case _: FileNotFoundException => None // deleted since: another number has followed
      case damaged: CkptException => throw new CkptException(
          damaged.kind,
          s"${damaged.said} So it is unknown whether the query was rescaled to another checkpoint.",
          "If it was not, delete this file, and start the query again.",
          false, damaged)
    }

  private def create(epoch: Long, content: Array[Byte]): Boolean = {
    files.mkdirs(folder)
    val output = files.createExclusive(path(epoch))
    try {
      output.write(content)
      output.close()
      true
    } catch {
      case _: FileAlreadyExistsException => false
      case failure: Throwable =>
        output.cancel()
        throw failure
    }
  }

  /** Whether a number that was just created is among those that are read: else it was deleted before. */
  private def isRead(epoch: Long): Boolean = {
    val known = list()
    val oldest = known.lastOption.getOrElse(0L) - Kept
    try known.takeWhile(_ <= oldest).take(DeletedAtOnce).foreach(old => files.delete(path(old)))
    catch { case NonFatal(problem) => logWarning(s"old runs in $folder could not be deleted", problem) }
    known.contains(epoch) && epoch > oldest
  }

  /** Whether a number belongs to this run. If the checkpoint was deleted and replaced, it belongs to another run. */
  def isOf(epoch: Long, runId: String): Boolean =
    try read(epoch).path("run_id").asText == runId
    catch { case _: FileNotFoundException => false }

  /** The error of a run that has a successor. */
  def refusal(epoch: Long, newest: Long): CkptException = new CkptException(
    "ConflictError",
    s"Run $epoch of the query in $checkpoint is over: run $newest${describe(newest)} has taken its place.",
    "The query continues there: end this driver. Of its work, only its earlier commits count.",
    false, null)

  /** The error of a run whose checkpoint is no longer there. */
  def loss(epoch: Long): LostCheckpointException = new LostCheckpointException(
    s"Run $epoch of the query is over: its ${path(epoch)} is gone, or is that of another run. The checkpoint was " +
      "deleted, and perhaps recreated.")

  private def describe(epoch: Long): String =
    try {
      val run = read(epoch)
      s" (run id ${run.path("run_id").asText("?")}, driver ${run.path("driver").asText("unknown")})"
    } catch { case NonFatal(problem) => s" (which cannot be read: ${problem.getMessage})" }

  private def read(epoch: Long): JsonNode = {
    val input = files.open(path(epoch))
    try Json.mapper.readTree(input: java.io.InputStream)
    catch { case _: JsonProcessingException => throw CkptErrors.format(s"${path(epoch)} is damaged: it is not JSON.") }
    finally input.close()
  }

  private def path(epoch: Long): Path = new Path(folder, f"$epoch%010d.run")
}

private[ckpt] object Runs {
  private val Name = "([0-9]{10})\\.run".r
  private final val MaxEpoch = 9999999999L

  /** The stamp of an object. A number is written once, so another stamp may mean another object. */
  final case class Stamp(modifiedMs: Long, bytes: Long)

  /** As many numbers are read as in `state_store/attempts/runs.py`; the rest is deleted, a few at a time. */
  private val Kept = OptionTable.runs.get("kept").asLong
  private val DeletedAtOnce = OptionTable.runs.get("deletedAtOnce").asInt

  /** The content of the object: JSON with its checksum. The name of the driver is cut to what `Xxh3` can take. */
  private[ckpt] def content(runId: String, driver: String): Array[Byte] = {
    val name = driver.filter(each => each >= ' ' && each <= '~' && each != '"' && each != '\\')
    val sealable = json(runId, name.take(Xxh3.MaxBytes - json(runId, "").length))
    s"""${sealable.dropRight(1)},"xxh3":"${Xxh3.hex(sealable.getBytes(UTF_8))}"}""".getBytes(UTF_8)
  }

  private def json(runId: String, driver: String): String = s"""{"format":1,"run_id":"$runId","driver":"$driver"}"""
}
