package org.apache.spark.sql.ckpt.plan.queries

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.commons.io.IOUtils
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.fence.LogFiles
import org.apache.spark.sql.ckpt.minor.ClassicSession
import org.apache.spark.sql.ckpt.settings.Json

/** Refuses to start a query in the folder of a savepoint. The query would spoil it: no restore would take it any more.
  *
  * A folder in which an earlier release has started a query is the checkpoint of that query, and it goes on there: a log
  * has an entry that the savepoint does not have. `Savepoint` in `state_store/savepoints/savepoint.py` has the same rule,
  * and `find_logs_of_query` that for a savepoint without `savepoint.json`.
  */
private[ckpt] final class SavepointFolder(folder: Path, conf: Configuration) {
  import SavepointFolder._

  private val files = new LogFiles(folder, conf)

  /** Why no query is to be started here. One listing, if this is no savepoint. */
  def refusal: Option[CkptException] = {
    val names = list(folder)
    if (names.contains(Finished)) refusalOfFinished
    else if (names.contains(Unfinished)) refusalOfUnfinished
    else None
  }

  private def refusalOfFinished: Option[CkptException] =
    Try(
      Json.mapper.readTree(read(Finished)).get("files").elements.asScala.map(
        _.get("name").asText).toSet).toOption match {
      case Some(own) =>
        refusalUnless(
          hasBeyond(own),
          "it is a savepoint, and the query would change it",
          s"Restore it into a new folder, `pyspark-ckpt savepoint restore '$folder' NEW_CHECKPOINT` or in Python " +
            s"pyspark_ckpt.restore('$folder', NEW_CHECKPOINT), and start the query with that checkpointLocation.")
      case None =>
        refusalUnless(
          isLive = false,
          s"it is a savepoint whose $Finished is damaged",
          s"To see what is wrong, run `pyspark-ckpt savepoint verify '$folder'`. ${adviceIfLive(Finished)}")
    }

  private def refusalOfUnfinished: Option[CkptException] = {
    val own = Option(new String(read(Unfinished), UTF_8)).collect { case Mark(version) =>
      val batch = version.toLong
      Logs.flatMap(log => Seq(s"$log/${batch - 2}", s"$log/${batch - 1}")).toSet + s"offsets/$batch"
    }
    refusalUnless(
      own.exists(hasBeyond),
      "it is an unfinished or half-deleted savepoint",
      "To continue from another savepoint, run `pyspark-ckpt savepoint restore SAVEPOINT NEW_CHECKPOINT`, and " +
        s"start the query with NEW_CHECKPOINT as its checkpointLocation. ${adviceIfLive(Unfinished)}")
  }

  private def adviceIfLive(mark: String): String =
    s"If this is the checkpoint of a query that was started here, delete only $folder/$mark, and start the query again."

  private def refusalUnless(isLive: Boolean, what: String, hint: String): Option[CkptException] =
    if (isLive) None else Some(CkptErrors.invalidInput(s"The query is not started on $folder: $what.", hint))

  /** Whether a log has an entry that is not of the savepoint. */
  private def hasBeyond(own: Set[String]): Boolean = Logs.exists { log =>
    list(new Path(folder, log)).exists(name => name.forall(_.isDigit) && !own.contains(s"$log/$name"))
  }

  private def list(of: Path): Seq[String] =
    try files.list(of).toSeq.map(_.getPath.getName)
    catch { case _: FileNotFoundException => Nil }

  private def read(name: String): Array[Byte] = {
    val input = files.open(new Path(folder, name))
    try IOUtils.toByteArray(input)
    finally input.close()
  }
}

private[ckpt] object SavepointFolder {
  private val Finished = "savepoint.json"
  private val Unfinished = "savepoint.unfinished"
  private val Logs = Seq("offsets", "commits")

  /** The content of the mark of an unfinished savepoint, with its version: see `folder_kind.py`. */
  private val Mark = "[0-9a-z]+ ([0-9]{1,18})".r

  /** Throws IllegalArgumentException, which PySpark has a class for, before anything is written there. */
  def refuse(session: ClassicSession, checkpoint: Path): Unit =
    new SavepointFolder(checkpoint, session.sessionState.newHadoopConf()).refusal.foreach { refused =>
      throw new IllegalArgumentException(refused.getMessage, refused)
    }
}
