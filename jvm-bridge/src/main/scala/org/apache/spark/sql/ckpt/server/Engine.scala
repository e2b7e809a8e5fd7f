package org.apache.spark.sql.ckpt
package server

import java.nio.file.Files
import java.util.concurrent.{ExecutorService, Executors}

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.internal.config.{
  EXECUTOR_MEMORY,
  EXECUTOR_MEMORY_OVERHEAD,
  EXECUTOR_MEMORY_OVERHEAD_FACTOR,
  EXECUTOR_MIN_MEMORY_OVERHEAD
}
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.util.ShutdownHookManager

/** What all providers of this JVM share: one memory limit, one set of readers, one folder for local files, and the
  * state server, which is started on first use and again after it has ended.
  */
private[ckpt] final class Engine(val settings: Settings, home: LocalFolder) extends Logging {
  val budget: MemoryBudget = settings.budget
  val readers: Readers = new Readers(home.path.resolve("readers"), budget)

  /** Runs work between two batches. */
  val background: ExecutorService = Executors.newFixedThreadPool(
    2,
    work => {
      val thread = new Thread(work, "ckpt-background")
      thread.setDaemon(true)
      thread
    })

  private var current: StateServer = _
  private var started = false
  private var ended = false
  @volatile private var replaced = false

  /** Whether another engine has replaced this one. */
  def isReplaced: Boolean = replaced

  /** Whether a server was ever started; until then nothing depends on the settings. */
  def hasStarted: Boolean = synchronized(started)

  /** Whether the local folder still exists. */
  def usable: Boolean = home.isThere

  def server(): StateServer = synchronized {
    if (ended) throw CkptErrors.lifecycle("The state store's engine has ended with its session.")
    if (current == null || !current.alive) {
      if (current != null) {
        logWarning("the state server ended; starting another one")
        current.release()
      }
      current =
        try StateServer.start(settings, Files.createDirectories(home.path.resolve("server")))
        catch {
          case held: CkptException if held.kind == "ConflictError" =>
            leaveHome()
            throw held
        }
      started = true
    }
    current
  }

  /** Ends this engine, so that one with other settings replaces it. */
  def giveWay(): Unit = synchronized {
    replaced = true
    close()
  }

  /** Ends this engine, so that one with another folder replaces it: a state server of an earlier process, which does
    * not end, uses this one.
    */
  private def leaveHome(): Unit = {
    logWarning(
      s"${home.path} is in use by a state server of an earlier process, which has not ended (it may be stopped, " +
        "or wait for a disk); using another folder")
    replaced = true
    end()
    ShutdownHookManager.removeShutdownDeleteDir(home.path.toFile)
    home.leave()
  }

  /** Ends the server, closes idle readers, and deletes local files. */
  def close(): Unit = synchronized {
    end()
    home.delete()
  }

  private def end(): Unit = {
    ended = true
    background.shutdown()
    if (current != null) current.stop()
    current = null
    readers.close()
  }
}

private[ckpt] object Engine extends Logging {
  private var current: Engine = _
  private val refused = scala.collection.mutable.HashSet.empty[Settings]

  /** The engine of this process. It keeps the options of the first query that got a server. Different options of later
    * queries are logged.
    */
  def get(settings: Settings): Engine = synchronized {
    if (current != null && current.isReplaced) current = null
    if (current != null && !current.usable) stop()
    if (current != null && current.settings != settings && !current.hasStarted) {
      current.giveWay()
      current = null
    }
    if (current == null) {
      current = new Engine(settings, home(settings))
      current.budget.misfits(Runtime.getRuntime.maxMemory, overhead).foreach(problem => logWarning(problem))
      endWithApplication(current)
    } else if (current.settings != settings && refused.add(settings)) {
      logWarning(
        s"the ckpt state store of this process was started with ${current.settings.text}; what differs in " +
          s"${settings.text} takes effect in a new process")
    }
    current
  }

  /** Ends the engine, if there is one; the next query starts another. */
  def stop(): Unit = synchronized {
    if (current != null) current.close()
    current = null
  }

  /** Stops the engine with the application: on the driver a session may end long before its JVM. An executor's engine
    * ends with its JVM.
    */
  private def endWithApplication(engine: Engine): Unit = SparkContext.getActive.foreach { context =>
    context.addSparkListener(new SparkListener {
      override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit =
        Engine.synchronized(if (current eq engine) stop())
    })
  }

  /** Memory that an executor in a process of its own has in addition to its heap. */
  private def overhead: Option[Long] = Option(SparkEnv.get).filter(_.executorId != "driver").map { env =>
    val factor = env.conf.get(EXECUTOR_MEMORY_OVERHEAD_FACTOR)
    val derived = math.max((env.conf.get(EXECUTOR_MEMORY) * factor).toLong, env.conf.get(EXECUTOR_MIN_MEMORY_OVERHEAD))
    env.conf.get(EXECUTOR_MEMORY_OVERHEAD).getOrElse(derived) << 20
  }

  /** The folder for local files. In a `localDir`, the folder of a killed process is used again. */
  private def home(settings: Settings): LocalFolder = {
    val leftOver = if (settings.hasLocalFolder) LocalFolder.takeLeftOver(settings.localFolder) else None
    leftOver.foreach(folder => Readers.deleteFolder(folder.path.resolve("readers")))
    val folder = leftOver.getOrElse(
      LocalFolder.make(settings.localFolder, Option(SparkEnv.get).fold("none")(_.executorId)))
    ShutdownHookManager.registerShutdownDeleteDir(folder.path.toFile)
    folder
  }
}
