package org.apache.spark.sql.ckpt.fence

import java.nio.file.{Files, LinkOption, NoSuchFileException, Path => LocalPath, Paths}
import java.nio.file.attribute.BasicFileAttributes

import org.apache.hadoop.fs.{Path => HadoopPath}

import org.apache.spark.sql.ckpt.CkptException

/** Only plain files of a local checkpoint are read: a link may lead anywhere, a pipe blocks, a device has no end. */
private[ckpt] object PlainFile {

  /** Throws CkptException if `path`, or the file of its checksums, is something else. A missing file is no error here. */
  def require(path: HadoopPath): Unit = {
    val file = Paths.get(HadoopPath.getPathWithoutSchemeAndAuthority(path).toString)
    Seq(file, file.resolveSibling(s".${file.getFileName}.crc")).foreach(requirePlain)
  }

  private def requirePlain(file: LocalPath): Unit =
    try {
      val found = Files.readAttributes(file, classOf[BasicFileAttributes], LinkOption.NOFOLLOW_LINKS)
      if (!found.isRegularFile && !found.isDirectory)
        throw new CkptException(
          "InvalidInputError",
          s"$file is not read: it is ${if (found.isSymbolicLink) "a link" else "a pipe, a socket or a device"}, " +
            "and only plain files are read in a checkpoint.",
          "Replace it with a plain file of the same content, or remove it if nobody needs it.",
          false, null)
    } catch { case _: NoSuchFileException => () }
}
