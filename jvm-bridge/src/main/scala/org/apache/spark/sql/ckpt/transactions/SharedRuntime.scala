package org.apache.spark.sql.ckpt.transactions

import java.nio.file.Path
import java.util.concurrent.{ExecutorService, Executors, RejectedExecutionException}

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.internal.config.{EXECUTOR_MEMORY, EXECUTOR_MEMORY_OVERHEAD, EXECUTOR_MEMORY_OVERHEAD_FACTOR}
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.server.{LocalFolder, ServerProcess, StateServer}
import org.apache.spark.sql.ckpt.settings.{MemoryBudget, Settings}
import org.apache.spark.util.ShutdownHookManager

/** What all providers of this JVM share: one memory limit, one set of readers, and the state server, which is started
  * on first use and again after it has ended. The server chooses the folder for local files.
  */
private[ckpt] final class SharedRuntime(val settings: Settings) extends Logging {
  val budget: MemoryBudget = settings.budget
  val readers: Readers = new Readers(() => home.readers, budget)
  val residents = new ResidentStores
  val packs = new PackReports

  private val background = SharedRuntime.daemons("ckpt-background")
  private val maintenance = SharedRuntime.daemons("ckpt-maintenance")

  @volatile private var home: LocalFolder = _
  private var current: StateServer = _
  private var ended = false
  @volatile private var replaced = false

  /** Whether another runtime has replaced this one. */
  def isReplaced: Boolean = replaced

  /** Whether a server was ever started; until then nothing depends on the settings. Waits for one that is starting. */
  def hasStarted: Boolean = synchronized(home != null)

  /** Whether the local folder still exists, if there was one. */
  def usable: Boolean = home == null || home.isThere

  def server(): StateServer = synchronized {
    if (ended) throw CkptErrors.lifecycle("The state store's runtime has ended with its session.")
    if (current != null && !current.alive) {
      logWarning("the state server ended; starting another one")
      current.release()
      current = null
    }
    if (current == null) {
      val next = ServerProcess.start(settings, Option(home).map(_.path))
      try useHome(next.home)
      catch {
        case failure: Throwable =>
          next.stop()
          throw failure
      }
      current = next
    }
    current
  }

  /** Moves to the folder that the server uses. It differs from that of an earlier server of this JVM if that one is
    * gone, or if that server's process has not ended.
    */
  private def useHome(path: Path): Unit = if (home == null || home.path != path) {
    val next = LocalFolder.hold(path)
    ShutdownHookManager.registerShutdownDeleteDir(path.toFile)
    if (home != null) {
      ShutdownHookManager.removeShutdownDeleteDir(home.path.toFile)
      home.leave()
    }
    home = next
  }

  /** Runs a round of maintenance in the background; false if the runtime has ended. */
  def maintain(round: Runnable): Boolean = execute(maintenance, round)

  /** Runs work between two batches in the background; false if the runtime has ended. */
  def runLater(work: Runnable): Boolean = execute(background, work)

  private def execute(threads: ExecutorService, work: Runnable): Boolean =
    try {
      threads.execute(work)
      true
    } catch {
      case _: RejectedExecutionException => false
    }

  /** Ends this runtime, so that one with other settings replaces it. */
  def giveWay(): Unit = synchronized {
    replaced = true
    close()
  }

  /** Ends the server, closes idle readers, and deletes local files. */
  def close(): Unit = synchronized {
    ended = true
    background.shutdown()
    maintenance.shutdown()
    packs.close()
    if (current != null) current.stop()
    current = null
    readers.close()
    if (home != null) home.delete()
  }
}

private[ckpt] object SharedRuntime extends Logging {
  private var current: SharedRuntime = _

  /** The least memory that an executor has outside its heap. Spark 3.5 has the default alone. */
  private final val LeastOverhead = "spark.executor.minMemoryOverhead"

  private val refused = scala.collection.mutable.HashSet.empty[Settings]

  /** The runtime of this process. It keeps the process's options of the first query that got a server. Different ones
    * of later queries are logged.
    */
  def get(settings: Settings): SharedRuntime = synchronized {
    def differs = current.settings.ofProcess != settings.ofProcess
    if (current != null && current.isReplaced) current = null
    if (current != null && !current.usable) stop()
    if (current != null && differs && !current.hasStarted) {
      current.giveWay()
      current = null
    }
    if (current == null) {
      current = new SharedRuntime(settings)
      current.budget.misfits(overhead).foreach(problem => logWarning(problem))
      endWithApplication(current)
    } else if (differs && refused.add(settings.ofProcess)) {
      logWarning(
        s"the ckpt state store of this process was started with ${current.settings.ofProcess.text}; changes by " +
          s"${settings.ofProcess.text} take effect in a new process")
    }
    current
  }

  /** Ends the runtime, if there is one; the next query starts another. */
  def stop(): Unit = synchronized {
    if (current != null) current.close()
    current = null
  }

  /** Stops the runtime with the application: on the driver a session may end long before its JVM. An executor's runtime
    * ends with its JVM.
    */
  private def endWithApplication(runtime: SharedRuntime): Unit = SparkContext.getActive.foreach { context =>
    context.addSparkListener(new SparkListener {
      override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit =
        SharedRuntime.synchronized(if (current eq runtime) stop())
    })
  }

  private def daemons(name: String): ExecutorService = Executors.newFixedThreadPool(
    2,
    work => {
      val thread = new Thread(work, name)
      thread.setDaemon(true)
      thread
    })

  /** Memory that an executor in a process of its own has in addition to its heap. */
  private def overhead: Option[Long] = Option(SparkEnv.get).filter(_.executorId != "driver").map { env =>
    val factor = env.conf.get(EXECUTOR_MEMORY_OVERHEAD_FACTOR)
    val derived = math.max((env.conf.get(EXECUTOR_MEMORY) * factor).toLong, env.conf.getSizeAsMb(LeastOverhead, "384m"))
    env.conf.get(EXECUTOR_MEMORY_OVERHEAD).getOrElse(derived) << 20
  }
}
