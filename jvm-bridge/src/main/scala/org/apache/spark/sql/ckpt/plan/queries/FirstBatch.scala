package org.apache.spark.sql.ckpt.plan.queries

import java.io.FileNotFoundException

import org.apache.hadoop.fs.{FileAlreadyExistsException, Path}

import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.fence.LogFiles
import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution}
import org.apache.spark.sql.ckpt.minor.plans.RealTime
import org.apache.spark.sql.ckpt.minor.query.QuerySession

/** Lets a query start again whose first batch, in real-time mode, was interrupted.
  *
  * Spark logs the offsets of such a batch at its end. Until then, the checkpoint has state without offsets, and there Spark
  * starts no query, lest one should lose or take over state. So a session for real-time mode has Spark's check off
  * (`verifyCheckpointDirectoryEmptyOnStart`), and this one in its place. A mark tells state of an interrupted first batch,
  * which is made anew, from state whose logs were lost.
  */
private[ckpt] object FirstBatch {
  private final val Mark = "_ckpt/first-batch.unfinished"
  private val Logs = Seq("offsets", "commits")

  /** Throws Spark's error if a query of this session must not start here. */
  def refuse(session: ClassicSession, checkpoint: Path): Unit =
    if (CkptStateStoreProvider.isDefault(session.sessionState.conf)) {
      val files = new LogFiles(checkpoint, session.sessionState.newHadoopConf())
      val state = new Path(checkpoint, "state")
      if (!isBegun(files, checkpoint) && isThere(files, state) && !isThere(files, new Path(checkpoint, Mark))) {
        throw RealTime.notEmpty(state.toString)
      }
    }

  /** Sets or removes the mark. Must be called before the first batch of a run. */
  def follow(query: StreamExecution): Unit =
    if (RealTime.isIn(query) && KeptState.isIn(query)) {
      val (files, checkpoint) = filesOf(query)
      if (isBegun(files, checkpoint)) files.delete(new Path(checkpoint, Mark)) else mark(files, checkpoint)
    }

  /** Removes the mark. Must be called when the first batch has ended. */
  def end(query: StreamExecution): Unit = if (RealTime.isIn(query)) {
    val (files, checkpoint) = filesOf(query)
    files.delete(new Path(checkpoint, Mark))
  }

  private def mark(files: LogFiles, checkpoint: Path): Unit = {
    val path = new Path(checkpoint, Mark)
    files.mkdirs(path.getParent)
    try files.createExclusive(path).close()
    catch { case _: FileAlreadyExistsException => }
  }

  private def isBegun(files: LogFiles, checkpoint: Path): Boolean =
    Logs.exists(log => isThere(files, new Path(checkpoint, log)))

  /** Whether there is this file, or anything in this folder. */
  private def isThere(files: LogFiles, path: Path): Boolean =
    try files.list(path).nonEmpty
    catch { case _: FileNotFoundException => false }

  private def filesOf(query: StreamExecution): (LogFiles, Path) = {
    val checkpoint = new Path(query.resolvedCheckpointRoot)
    (new LogFiles(checkpoint, QuerySession.of(query).sessionState.newHadoopConf()), checkpoint)
  }
}
