package org.apache.spark.sql.ckpt.fence

import java.io.{BufferedOutputStream, FileOutputStream}
import java.nio.file.{FileAlreadyExistsException, FileSystemException, Files, Path}
import java.util.UUID

import org.apache.hadoop.fs.{FileAlreadyExistsException => HadoopExistsException, Path => HadoopPath}

import org.apache.spark.sql.ckpt.minor.CancellableFSDataOutputStream

/** A new file of a file system, durable when it is closed: see `Durable`. Spark's own managers look whether a name is
  * free, and then rename: of two that do so at the same time, both succeed. A hard link is one step.
  */
private[ckpt] final class LinkedFile private (target: Path, staged: Path, file: FileOutputStream)
  extends CancellableFSDataOutputStream(new BufferedOutputStream(file)) {
  private var ended = false

  override def close(): Unit = if (!ended) {
    ended = true
    try {
      try {
        flush()
        Durable.syncFile(file)
      } finally file.close()
      name()
    } finally Files.deleteIfExists(staged)
    Durable.syncFolder(target.getParent)
  }

  private def name(): Unit =
    try {
      // What Hadoop keeps beside its files: that of an earlier file of this name would not fit.
      if (!Files.exists(target)) Files.deleteIfExists(target.resolveSibling(s".${target.getFileName}.crc"))
      link()
    } catch {
      case _: FileAlreadyExistsException => throw new HadoopExistsException(s"$target exists already.")
    }

  private def link(): Unit =
    try Files.createLink(target, staged)
    catch {
      // A file server whose answer was lost is asked again, and finds the link of the first time.
      case exists: FileAlreadyExistsException => if (!Files.isSameFile(target, staged)) throw exists
      case _: UnsupportedOperationException | _: FileSystemException =>
        Files.move(staged, target) // no hard links there
    }

  override def cancel(): Unit = if (!ended) {
    ended = true
    try file.close()
    finally Files.deleteIfExists(staged)
  }
}

private[ckpt] object LinkedFile {

  def create(path: HadoopPath): LinkedFile = {
    val target = Durable.localPath(path)
    val staged = target.resolveSibling(s".${target.getFileName}.${UUID.randomUUID}.tmp")
    // Not a channel of NIO: the end of a query would interrupt it in the middle of an entry.
    new LinkedFile(target, staged, new FileOutputStream(staged.toFile))
  }
}
