package org.apache.spark.sql.ckpt

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FileAlreadyExistsException, FileStatus, Path, PathFilter}

import org.apache.spark.sql.ckpt.fence.{CommitEntry, Fence, LogFiles, LostCheckpointException, MinorFileManager}
import org.apache.spark.sql.ckpt.minor.{CancellableFSDataOutputStream, CheckpointFileManager}

/** Writes the files of Spark's logs: `spark.sql.streaming.checkpointFileManagerClass`, which `configure()` sets.
  *
  * Of several drivers that create one file, exactly one succeeds: on a file system by a hard link, in S3 by a
  * conditional request, elsewhere by the rename of Spark's own manager. A query that writes an entry must be the newest
  * run on its checkpoint, before the write and after it: see `Fence`. Entries and new folders survive a loss of power:
  * see `Durable`. Everything else is left to Spark's own manager.
  */
class FencedCheckpointFileManager(path: Path, hadoopConf: Configuration) extends MinorFileManager {
  private val log = new LogFiles(path, hadoopConf)
  override protected val files: CheckpointFileManager = log.ofSpark

  override def createAtomic(path: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream = {
    val fence = Fence.of(path)
    fence.foreach(_.check())
    if (overwriteIfPossible) {
      files.createAtomic(path, overwriteIfPossible)
    } else {
      val entry = fence.fold(log.createExclusive(path))(createFenced(path, _))
      if (path.getParent.getName == "commits") new CommitEntry(entry) else entry
    }
  }

  /** A new entry of the run of a query. */
  private[ckpt] def createFenced(path: Path, fence: Fence): CancellableFSDataOutputStream =
    new FencedEntry(path, log.createExclusive(path), fence)

  /** Whether the file exists. If it is an entry that this query is about to write, the fence may say why. */
  override def exists(path: Path): Boolean = {
    val found = files.exists(path)
    if (found && path.getName.forall(_.isDigit)) Fence.of(path).foreach(_.check())
    found
  }

  override def open(path: Path): FSDataInputStream = log.open(path)

  /** Lists a folder. A query that could not become the newest run on its checkpoint reads none of its logs. */
  override def list(path: Path, filter: PathFilter): Array[FileStatus] = {
    Fence.requireTaken()
    files.list(path, filter)
  }

  override def mkdirs(path: Path): Unit = log.mkdirs(path)
  override def delete(path: Path): Unit = files.delete(path)
  override def isLocal: Boolean = files.isLocal
  override def createCheckpointDirectory(): Path = log.makeDurably(path)(files.createCheckpointDirectory())

  /** An entry of a log. It counts only if its writer is still the newest run once the entry exists. */
  private final class FencedEntry(path: Path, output: CancellableFSDataOutputStream, fence: Fence)
    extends CancellableFSDataOutputStream(output) {
    private var closed = false

    override def close(): Unit = if (!closed) {
      closed = true
      try output.close()
      catch {
        case exists: FileAlreadyExistsException =>
          fence.check() // its error says who was first
          throw exists
      }
      try fence.check()
      catch {
        case over: CkptException =>
          if (over.isInstanceOf[LostCheckpointException] || isOld) files.delete(path)
          throw over
      }
    }

    /** Whether the log has later entries, but no longer the next one. Then the successor committed this entry long ago
      * and deleted it, and this driver, which was stopped for that long, found the name free and has just created it
      * again. If the next one is there, the successor may have gone on from this entry, which was there before it.
      */
    private def isOld: Boolean = numberOf(path).exists { number =>
      val numbers = log.list(path.getParent).flatMap(each => numberOf(each.getPath)).toSet
      numbers.exists(_ > number) && !numbers(number + 1)
    }

    private def numberOf(entry: Path): Option[Long] = Try(entry.getName.stripSuffix(".compact").toLong).toOption

    override def cancel(): Unit = {
      closed = true
      output.cancel()
    }
  }
}
