package org.apache.spark.sql.ckpt
package fence

import java.io.IOException
import java.util.UUID

import org.apache.hadoop.fs.{FSDataOutputStream, FileAlreadyExistsException, FileSystem, Path}
import org.apache.hadoop.fs.Options.CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream

/** A new object of S3, written by one request that the service refuses if the name is taken (`If-None-Match: *`).
  *
  * The object carries a mark of its writer. If the answer to the request was lost, S3A makes it again, and is refused
  * because of its own object.
  */
private[ckpt] final class ConditionalObject private (
    system: FileSystem,
    path: Path,
    mark: String,
    output: FSDataOutputStream)
  extends CancellableFSDataOutputStream(output) {
  private var ended = false

  override def close(): Unit = if (!ended) {
    ended = true
    try output.close()
    catch {
      case refused: IOException =>
        ConditionalObject.writerOf(system, path) match {
          case Some(`mark`) =>
          case Some(_) =>
            throw new FileAlreadyExistsException(s"$path exists already.").initCause(refused)
          case None => throw refused
        }
    }
  }

  override def cancel(): Unit = if (!ended) {
    ended = true
    output.abort()
  }
}

private[ckpt] object ConditionalObject {
  private final val Writer = "ckpt-writer"
  private final val Header = s"fs.s3a.create.header.$Writer"
  private final val Attribute = s"header.$Writer"

  /** Whether the file system makes such requests. The service may ignore the condition. */
  def isPossible(system: FileSystem, path: Path): Boolean =
    system.hasPathCapability(path, FS_OPTION_CREATE_CONDITIONAL_OVERWRITE)

  def create(system: FileSystem, path: Path): ConditionalObject = {
    val mark = UUID.randomUUID.toString
    val output = system.createFile(path).overwrite(true).opt(Header, mark)
      .must(FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true).build()
    new ConditionalObject(system, path, mark, output)
  }

  /** The mark of the object's writer, empty if it has none; None if there is no object. */
  private def writerOf(system: FileSystem, path: Path): Option[String] =
    if (!system.exists(path)) None
    else Some(Option(system.getXAttr(path, Attribute)).fold("")(new String(_, "UTF-8")))
}
