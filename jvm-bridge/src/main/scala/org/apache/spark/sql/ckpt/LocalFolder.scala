package org.apache.spark.sql.ckpt

import java.io.IOException
import java.nio.channels.{FileChannel, FileLock, OverlappingFileLockException}
import java.nio.file.{Files, Path}
import java.nio.file.StandardOpenOption.{CREATE, WRITE}
import java.nio.file.attribute.PosixFilePermissions

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.spark.internal.Logging

/** A folder for the local files of one process, private to its user. A lock in it, which ends with the process however
  * that dies, says that it is in use.
  */
private[ckpt] final class LocalFolder private (val path: Path, lock: FileLock) {

  /** Whether the folder is still there: Spark deletes the one that it may lie in when a session ends. */
  def isThere: Boolean = Files.isDirectory(path)

  def delete(): Unit = {
    if (isThere) Readers.deleteFolder(path)
    lock.channel.close()
  }
}

private[ckpt] object LocalFolder extends Logging {
  private val Prefix = "ckpt-"
  private val LockName = "owner.lock"
  private val Private = PosixFilePermissions.fromString("rwx------")

  /** A new folder in `parent`. */
  def make(parent: Path, owner: String): LocalFolder = {
    Files.createDirectories(parent)
    val path = Files.createTempDirectory(parent, s"$Prefix$owner-", PosixFilePermissions.asFileAttribute(Private))
    lock(path).getOrElse(make(parent, owner)) // another process took it for one that was left
  }

  /** The folder that was used last of those that processes which were killed have left in `parent`, if there is one. */
  def takeLeftOver(parent: Path): Option[LocalFolder] =
    if (!Files.isDirectory(parent)) {
      None
    } else {
      val found = Using.resource(Files.newDirectoryStream(parent, s"$Prefix*"))(_.asScala.toSeq)
      found.sortBy(path => -lastUse(path)).iterator.filter(isOurs).flatMap(lock(_)).nextOption().map { folder =>
        logInfo(s"using the local files that an earlier process has left in ${folder.path}")
        folder
      }
    }

  private def lastUse(path: Path): Long = path.resolve(LockName).toFile.lastModified

  /** Nobody else may have laid it there: its files are state that is used. */
  private def isOurs(path: Path): Boolean =
    try {
      Files.isDirectory(path, java.nio.file.LinkOption.NOFOLLOW_LINKS) && Files.isRegularFile(path.resolve(LockName)) &&
      Files.getPosixFilePermissions(path) == Private && Files.getOwner(path).getName == System.getProperty("user.name")
    } catch {
      case _: IOException => false // its owner is just deleting it
    }

  private def lock(path: Path): Option[LocalFolder] =
    try {
      val file = path.resolve(LockName)
      val channel = FileChannel.open(file, CREATE, WRITE)
      val held =
        try Option(channel.tryLock())
        catch { case _: OverlappingFileLockException => None }
      val taken = held.filter(_ => Files.exists(file))
      if (taken.isEmpty) channel.close() else file.toFile.setLastModified(System.currentTimeMillis())
      taken.map(new LocalFolder(path, _))
    } catch {
      case _: IOException => None
    }
}
