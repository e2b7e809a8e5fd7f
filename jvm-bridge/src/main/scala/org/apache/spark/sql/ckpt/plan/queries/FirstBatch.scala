package org.apache.spark.sql.ckpt.plan.queries

import java.io.FileNotFoundException

import org.apache.hadoop.fs.{FileAlreadyExistsException, Path}

import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.fence.LogFiles
import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution}
import org.apache.spark.sql.ckpt.minor.plans.RealTime
import org.apache.spark.sql.ckpt.minor.query.QuerySession

/** Tells the state of a first batch that was interrupted in real-time mode from state whose log of offsets is lost.
  *
  * Spark logs the offsets of a batch in real-time mode at its end. Until the first one has ended, the checkpoint has state
  * without offsets, and so Spark lets a query in real-time mode begin with any state: it would be overwritten. A mark is
  * there as long as the first batch has not ended, and without it such state is refused, as Spark does in micro-batches.
  */
private[ckpt] object FirstBatch {
  private final val Mark = "_ckpt/first-batch.unfinished"

  /** Throws Spark's error if no query of this session, which is for real-time mode, must start here. */
  def refuse(session: ClassicSession, checkpoint: Path): Unit =
    if (CkptStateStoreProvider.isDefault(session.sessionState.conf)) {
      val files = new LogFiles(checkpoint, session.sessionState.newHadoopConf())
      val state = new Path(checkpoint, "state")
      if (!isBegun(files, checkpoint) && namesIn(files, state).nonEmpty &&
        namesIn(files, new Path(checkpoint, Mark)).isEmpty) {
        throw RealTime.notEmpty(state.toString)
      }
    }

  /** Sets the mark, or removes it if the first batch has ended. Must be called before the first batch of a run, and after
    * batch 0.
    */
  def follow(query: StreamExecution): Unit =
    if (CkptStateStoreProvider.isDefault(query.sparkSession.sessionState.conf)) {
      val checkpoint = new Path(query.resolvedCheckpointRoot)
      val files = new LogFiles(checkpoint, QuerySession.of(query).sessionState.newHadoopConf())
      if (isBegun(files, checkpoint)) files.delete(new Path(checkpoint, Mark))
      else if (RealTime.isIn(query) && KeptState.isIn(query)) mark(files, checkpoint)
    }

  private def mark(files: LogFiles, checkpoint: Path): Unit = {
    val path = new Path(checkpoint, Mark)
    files.mkdirs(path.getParent)
    try files.createExclusive(path).close()
    catch { case _: FileAlreadyExistsException => }
  }

  /** Whether the log of offsets has an entry. */
  private def isBegun(files: LogFiles, checkpoint: Path): Boolean =
    namesIn(files, new Path(checkpoint, "offsets")).exists(_.forall(_.isDigit))

  /** The name of a file that is there; or those in a folder. */
  private def namesIn(files: LogFiles, path: Path): Seq[String] =
    try files.list(path).toSeq.map(_.getPath.getName)
    catch { case _: FileNotFoundException => Nil }
}
