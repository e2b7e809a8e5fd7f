package org.apache.spark.sql.ckpt.fence

import java.io.{ByteArrayOutputStream, IOException, OutputStream}
import java.util.UUID

import scala.annotation.tailrec

import org.apache.hadoop.fs.{FSDataOutputStream, FileAlreadyExistsException, FileSystem, Path}

import org.apache.spark.sql.ckpt.minor.CancellableFSDataOutputStream

/** A new object of S3, written by one request that the service refuses if the name is taken (`If-None-Match: *`).
  *
  * The object carries a mark of its writer. If the answer to the request was lost, S3A repeats the request, and is
  * refused because of its own object.
  *
  * A service may answer that it has done nothing, because another request for the name is under way (status 409). S3A
  * does not repeat the request then, so this class does.
  */
private[ckpt] final class ConditionalObject private (path: Path, mark: String, written: ConditionalObject.Written)
  extends CancellableFSDataOutputStream(written) {
  private var ended = false

  override def close(): Unit = if (!ended) {
    ended = true
    finish(written, ConditionalObject.Tries)
  }

  @tailrec
  private def finish(request: ConditionalObject.Written, tries: Int): Unit = {
    val refused =
      try {
        request.close()
        None
      } catch { case refused: IOException => Some(refused) }
    (refused, refused.flatMap(_ => request.writer())) match {
      case (None, _) | (_, Some(`mark`)) =>
      case (Some(refused), Some(_)) =>
        throw new FileAlreadyExistsException(s"$path exists already.").initCause(refused)
      case (Some(refused), None) =>
        if (tries == 1 || !ConditionalObject.isBusy(refused)) throw refused
        Thread.sleep(ConditionalObject.PauseMs)
        finish(request.again().getOrElse(throw refused), tries - 1)
    }
  }

  override def cancel(): Unit = if (!ended) {
    ended = true
    written.abort()
  }
}

private[ckpt] object ConditionalObject {
  private final val Writer = "ckpt-writer"
  private final val Header = s"fs.s3a.create.header.$Writer"
  private final val Attribute = s"header.$Writer"

  /** `FS_OPTION_CREATE_CONDITIONAL_OVERWRITE` of Hadoop. Before 3.4.2, Hadoop does not know it, and no file system has it.
    */
  private final val OnlyIfAbsent = "fs.option.create.conditional.overwrite"
  private final val Tries = 20
  private final val PauseMs = 250

  /** Entries of logs are short, except in the log of a file sink that lists all its files. */
  private final val MaxRemembered = 8 << 20

  /** Whether the file system makes such requests. The service may ignore the condition. */
  def isPossible(system: FileSystem, path: Path): Boolean =
    system.hasPathCapability(path, OnlyIfAbsent)

  def create(system: FileSystem, path: Path): ConditionalObject = {
    val mark = UUID.randomUUID.toString
    new ConditionalObject(path, mark, new Written(system, path, mark))
  }

  /** Whether another request for the name was under way. The classes of the SDK need not be there. */
  private def isBusy(refused: IOException): Boolean =
    Iterator.iterate[Throwable](refused)(_.getCause).takeWhile(_ != null)
      .exists(each => String.valueOf(each.getMessage).contains("Status Code: 409"))

  /** Remembers what is written to one request, so that the request can be repeated. */
  private final class Written(system: FileSystem, path: Path, mark: String) extends OutputStream {
    private val output: FSDataOutputStream = system.createFile(path).overwrite(true).opt(Header, mark)
      .must(OnlyIfAbsent, true).build()
    private val content = new ByteArrayOutputStream

    override def write(byte: Int): Unit = write(Array(byte.toByte), 0, 1)

    override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
      output.write(bytes, offset, length)
      if (content.size <= MaxRemembered) content.write(bytes, offset, length)
    }

    override def close(): Unit = output.close()
    def abort(): Unit = output.abort()

    /** A second request with the same content; None if it was too long to be remembered. */
    def again(): Option[Written] =
      if (content.size > MaxRemembered) None
      else {
        val next = new Written(system, path, mark)
        content.writeTo(next)
        Some(next)
      }

    /** The mark of the object's writer, empty if it has none; None if there is no object. */
    def writer(): Option[String] =
      if (!system.exists(path)) None
      else Some(Option(system.getXAttr(path, Attribute)).fold("")(new String(_, "UTF-8")))
  }
}
