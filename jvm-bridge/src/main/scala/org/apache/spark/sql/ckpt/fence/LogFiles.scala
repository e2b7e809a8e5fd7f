package org.apache.spark.sql.ckpt.fence

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FileStatus, Path}

import org.apache.spark.sql.ckpt.minor.{
  CancellableFSDataOutputStream,
  CheckpointFileManager,
  FileContextBasedCheckpointFileManager
}
import org.apache.spark.sql.internal.SQLConf

/** Files of a checkpoint, whatever query they are of: see `FencedCheckpointFileManager`. */
private[ckpt] final class LogFiles(path: Path, hadoopConf: Configuration) {

  private val conf = {
    val without = new Configuration(hadoopConf)
    without.unset(SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key)
    without
  }

  /** The manager that Spark would take if no class were set. */
  val ofSpark: CheckpointFileManager = CheckpointFileManager.create(path, conf)

  /** As that of Spark, but blocks are durable, where the file system has blocks. */
  private lazy val renaming: CheckpointFileManager = ofSpark match {
    case _: FileContextBasedCheckpointFileManager => new SyncedBlocks(path, conf)
    case other => other
  }

  /** Of several that create `path`, one succeeds; the others get Hadoop's `FileAlreadyExistsException` from `close`. The
    * file is durable after `close`.
    */
  def createExclusive(path: Path): CancellableFSDataOutputStream =
    if (ofSpark.isLocal) LinkedFile.create(path)
    else {
      val system = path.getFileSystem(hadoopConf)
      if (ConditionalObject.isPossible(system, path)) ConditionalObject.create(system, path)
      else new SyncedFile(renaming.createAtomic(path, overwriteIfPossible = false))
    }

  def open(path: Path): FSDataInputStream = {
    if (ofSpark.isLocal) PlainFile.require(path)
    ofSpark.open(path)
  }

  def list(folder: Path): Array[FileStatus] = ofSpark.list(folder)
  def mkdirs(folder: Path): Unit = makeDurably(folder)(ofSpark.mkdirs(folder))
  def delete(path: Path): Unit = ofSpark.delete(path)

  /** Makes a folder that survives a loss of power. */
  def makeDurably[A](folder: Path)(make: => A): A = if (ofSpark.isLocal) Durable.makeFolder(folder)(make) else make
}
