package org.apache.spark.sql.ckpt.server

import java.io.{File, IOException}
import java.nio.channels.{FileChannel, FileLock}
import java.nio.file.{Files, LinkOption, Path}
import java.nio.file.StandardOpenOption.WRITE

import scala.annotation.tailrec

import org.apache.spark.sql.ckpt.CkptException

/** The folder of this process's local files. Its state server has chosen it, and leaves the folders of other processes
  * alone while these hold a lock in them: see `state_store/server/homes.py`. A lock ends with its process.
  */
private[ckpt] final class LocalFolder private (val path: Path, lock: FileLock) {

  /** The scratch files of this process's readers. */
  val readers: Path = path.resolve("readers")

  /** Whether the folder still exists: when a session ends, Spark deletes the folder that may contain it. */
  def isThere: Boolean = Files.isDirectory(path)

  /** Deletes the lock last: without it, the rest of an interrupted deletion would stay for a week. */
  def delete(): Unit = {
    if (isThere) LocalFolder.deleteAll(path, LocalFolder.LockName)
    leave()
  }

  /** Leaves the folder as it is to others. */
  def leave(): Unit = lock.channel.close()
}

private[ckpt] object LocalFolder {
  private val LockName = "owner.lock"
  private val PauseMs = 10L
  private val MaxTries = 300

  /** Shows that the folder is in use while this process lives. A state server that looks for a free folder has the lock
    * for a moment.
    */
  def hold(path: Path): LocalFolder =
    try {
      val channel = FileChannel.open(path.resolve(LockName), WRITE, LinkOption.NOFOLLOW_LINKS)
      try {
        val lock = tryLock(channel, MaxTries)
        new LocalFolder(path, lock.getOrElse(throw lost(s"$path is in use by another process.")))
      } catch {
        case failure: Throwable =>
          channel.close()
          throw failure
      }
    } catch {
      case failure: IOException => throw lost(s"$path cannot be locked: $failure.", failure)
    }

  private def lost(message: String, cause: Throwable = null): CkptException =
    new CkptException("LifecycleError", message, "The next attempt of the task gets another folder.", true, cause)

  @tailrec
  private def tryLock(channel: FileChannel, tries: Int): Option[FileLock] = Option(channel.tryLock()) match {
    case None if tries > 1 =>
      Thread.sleep(PauseMs)
      tryLock(channel, tries - 1)
    case lock => lock
  }

  /** Deletes the folder with all that is in it, files of the name `last` after all others. A link is deleted, not
    * its target.
    */
  def deleteAll(folder: Path, last: String = ""): Unit = {
    val files = Option(folder.toFile.listFiles).getOrElse(Array.empty[File]).sortBy(_.getName == last)
    files.foreach(file => if (isFolder(file.toPath)) deleteAll(file.toPath, last) else file.delete())
    Files.deleteIfExists(folder)
  }

  private def isFolder(path: Path): Boolean = Files.isDirectory(path, LinkOption.NOFOLLOW_LINKS)
}
