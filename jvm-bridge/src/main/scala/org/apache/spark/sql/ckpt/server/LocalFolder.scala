package org.apache.spark.sql.ckpt
package server

import java.io.IOException
import java.nio.channels.{FileChannel, FileLock, OverlappingFileLockException}
import java.nio.file.{Files, Path}
import java.nio.file.StandardOpenOption.{CREATE, WRITE}
import java.nio.file.attribute.{PosixFilePermissions, UserPrincipal}
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.spark.internal.Logging

/** A folder for the local files of one process, private to its user. A lock in it marks the folder as in use; the lock
  * ends with the process, however it dies.
  */
private[ckpt] final class LocalFolder private (val path: Path, lock: FileLock) {

  /** Whether the folder still exists: when a session ends, Spark deletes the folder that may contain it. */
  def isThere: Boolean = Files.isDirectory(path)

  def delete(): Unit = {
    if (isThere) Readers.deleteFolder(path)
    lock.channel.close()
  }

  /** Leaves the folder as it is for later processes; this process does not take it again. */
  def leave(): Unit = {
    LocalFolder.abandoned.add(path)
    lock.channel.close()
  }
}

private[ckpt] object LocalFolder extends Logging {
  private val Prefix = "ckpt-"
  private val KeptMs = TimeUnit.DAYS.toMillis(7)
  private val LockName = "owner.lock"
  private val abandoned = java.util.concurrent.ConcurrentHashMap.newKeySet[Path]()
  private val Private = PosixFilePermissions.fromString("rwx------")

  /** A new folder in `parent`. */
  def make(parent: Path, owner: String): LocalFolder = {
    Files.createDirectories(parent)
    val path = Files.createTempDirectory(parent, s"$Prefix$owner-", PosixFilePermissions.asFileAttribute(Private))
    lock(path).getOrElse(make(parent, owner)) // another process took it as a left-over folder
  }

  /** Takes the most recently used folder that a killed process has left in `parent`, and deletes old ones. */
  def takeLeftOver(parent: Path): Option[LocalFolder] =
    if (!Files.isDirectory(parent)) {
      None
    } else {
      val me = owner(parent)
      val left = listed(parent, s"$Prefix*").filterNot(abandoned.contains).filter(isOf(_, me)).map(path =>
        path -> lastUse(path)).sortBy(-_._2)
      val taken = left.iterator.map(_._1).flatMap(lock(_)).nextOption()
      taken.foreach(folder => logInfo(s"using the local files that an earlier process has left in ${folder.path}"))
      val forgotten = System.currentTimeMillis() - KeptMs
      left.iterator.filter(_._2 < forgotten).map(_._1).filterNot(path => taken.exists(_.path == path))
        .flatMap(lock(_)).foreach { folder =>
          logInfo(s"deleting the local files in ${folder.path}, which no process has used for a week")
          folder.delete()
        }
      taken
    }

  private def listed(folder: Path, names: String): Seq[Path] =
    Using.resource(Files.newDirectoryStream(folder, names))(_.asScala.toSeq)

  /** When something was last created or removed in it. */
  private def lastUse(path: Path): Long =
    try listed(path, "*").map(_.toFile.lastModified).maxOption.getOrElse(0L)
    catch { case _: IOException => 0L }

  /** The owner of files that this process creates in `parent`; not all systems tell the name of the user. */
  private def owner(parent: Path): UserPrincipal = {
    val mine = Files.createTempFile(parent, ".ckpt-owner-", "")
    try Files.getOwner(mine)
    finally Files.delete(mine)
  }

  /** Whether the folder belongs to `user` alone; nobody else may plant one, because its files are used as state. */
  private def isOf(path: Path, user: UserPrincipal): Boolean =
    try {
      Files.isDirectory(path, java.nio.file.LinkOption.NOFOLLOW_LINKS) && Files.isRegularFile(path.resolve(LockName)) &&
      Files.getPosixFilePermissions(path) == Private && Files.getOwner(path) == user
    } catch {
      case _: IOException => false // its owner is deleting it
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
