package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.util.ShutdownHookManager

/** What all providers of this JVM share: one memory limit, one set of readers, one folder for local files.
  *
  * The first query's options count for the process; a later query that asks for others is told so in the log.
  */
private[ckpt] final class Engine(val settings: Settings, val home: Path) {
  val budget: MemoryBudget = settings.budget
  val readers: Readers = new Readers(home.resolve("readers"), budget)
}

private[ckpt] object Engine extends Logging {
  private var current: Engine = _
  private val refused = scala.collection.mutable.HashSet.empty[Settings]

  def get(settings: Settings): Engine = synchronized {
    if (current == null) {
      current = new Engine(settings, privateFolder(settings.localFolder))
    } else if (current.settings != settings && refused.add(settings)) {
      logWarning(
        s"the ckpt state store of this process was started with ${current.settings.text}; what differs in " +
          s"${settings.text} takes effect in a new process")
    }
    current
  }

  def home(settings: Settings): Path = get(settings).home

  private def privateFolder(parent: Path): Path = {
    Files.createDirectories(parent)
    val owner = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    val name = s"ckpt-${Option(SparkEnv.get).fold("none")(_.executorId)}-"
    val folder = Files.createTempDirectory(parent, name, owner)
    ShutdownHookManager.registerShutdownDeleteDir(folder.toFile)
    folder
  }
}
