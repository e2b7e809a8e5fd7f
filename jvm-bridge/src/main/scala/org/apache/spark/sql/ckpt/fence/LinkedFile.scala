package org.apache.spark.sql.ckpt
package fence

import java.io.{BufferedOutputStream, FileOutputStream, OutputStream}
import java.nio.file.{FileAlreadyExistsException, FileSystemException, Files, Path, Paths}
import java.util.UUID

import org.apache.hadoop.fs.{FileAlreadyExistsException => HadoopExistsException, Path => HadoopPath}

import org.apache.spark.sql.ckpt.minor.CancellableFSDataOutputStream

/** A new file of a file system. Spark's own managers look whether a name is free, and then rename: of two that do so at
  * the same time, both succeed. A hard link is one step.
  */
private[ckpt] final class LinkedFile private (target: Path, staged: Path, output: OutputStream)
  extends CancellableFSDataOutputStream(output) {
  private var ended = false

  override def close(): Unit = if (!ended) {
    ended = true
    try {
      output.close()
      name()
    } finally Files.deleteIfExists(staged)
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
    try output.close()
    finally Files.deleteIfExists(staged)
  }
}

private[ckpt] object LinkedFile {

  def create(path: HadoopPath): LinkedFile = {
    val target = Paths.get(HadoopPath.getPathWithoutSchemeAndAuthority(path).toString)
    val staged = target.resolveSibling(s".${target.getFileName}.${UUID.randomUUID}.tmp")
    // Not a channel of NIO: the end of a query would interrupt it in the middle of an entry.
    new LinkedFile(target, staged, new BufferedOutputStream(new FileOutputStream(staged.toFile)))
  }
}
