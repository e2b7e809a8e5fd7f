package org.apache.spark.sql.ckpt.fence

import java.io.FileOutputStream
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path => LocalPath, Paths, StandardOpenOption}
import java.util.EnumSet
import java.util.concurrent.{Callable, ExecutorService, Executors}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{CreateFlag, FSDataOutputStream, FileContext, Options, Path, StreamCapabilities}

import org.apache.spark.sql.ckpt.minor.{CancellableFSDataOutputStream, FileContextBasedCheckpointFileManager}
import org.apache.spark.sql.ckpt.server.Uninterrupted

/** Makes files and their names survive a loss of power.
  *
  * A file system keeps both in memory at first. After a loss of power, a file that was not synced is empty or cut, and
  * one whose folder was not synced may be gone. A name must therefore appear after the content is durable, and whatever
  * follows from the file must happen after its name is.
  */
private[ckpt] object Durable {

  /** Only a channel can sync a folder, and an interrupt of its thread closes a channel: nobody interrupts these. */
  private val threads: ExecutorService = Executors.newCachedThreadPool { task =>
    val thread = new Thread(task, "ckpt-sync")
    thread.setDaemon(true)
    thread
  }

  /** Makes the content of a file durable. An interrupt does not stop it. Throws IOException. */
  def syncFile(output: FileOutputStream): Unit = output.getFD.sync()

  /** Makes the names in a folder durable. An interrupt does not stop it. Throws IOException. */
  def syncFolder(folder: LocalPath): Unit = {
    Uninterrupted.get(threads.submit((() => sync(folder)): Callable[Unit]), mayLeave = false)
  }

  private def sync(folder: LocalPath): Unit = {
    val channel = FileChannel.open(folder, StandardOpenOption.READ)
    try channel.force(true)
    finally channel.close()
  }

  /** Lets `make` create a folder and its parents, each of which is then durable in its own parent. */
  def makeFolder[A](folder: Path)(make: => A): A = {
    val andParents = Iterator.iterate(localPath(folder))(_.getParent).takeWhile(_ != null)
    val missing = andParents.takeWhile(!Files.exists(_)).toList
    val made = make
    missing.foreach(each => syncFolder(each.getParent))
    made
  }

  def localPath(path: Path): LocalPath =
    Paths.get(Path.getPathWithoutSchemeAndAuthority(path).toString).toAbsolutePath
}

/** Writes temporary files in which HDFS syncs each block, and its name, before it tells that the block is complete. A
  * data node that has only the content after a loss of power has an incomplete block, which nobody reads.
  */
private[ckpt] final class SyncedBlocks(path: Path, conf: Configuration)
  extends FileContextBasedCheckpointFileManager(path, conf) {
  private val context =
    if (path.isAbsoluteAndSchemeAuthorityNull) FileContext.getFileContext(conf)
    else FileContext.getFileContext(path.toUri, conf)

  override def createTempFile(path: Path): FSDataOutputStream = context.create(
    path,
    EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE, CreateFlag.SYNC_BLOCK),
    Options.CreateOpts.checksumParam(Options.ChecksumOpt.createDisabled()))
}

/** A new file whose content is on the disks of its servers before it gets its name, as in HDFS. Other systems have it
  * there when the file is closed.
  */
private[ckpt] final class SyncedFile(output: CancellableFSDataOutputStream)
  extends CancellableFSDataOutputStream(output) {
  private var ended = false

  override def close(): Unit = if (!ended) {
    ended = true
    if (output.hasCapability(StreamCapabilities.HSYNC)) output.hsync()
    output.close()
  }

  override def cancel(): Unit = {
    ended = true
    output.cancel()
  }
}
