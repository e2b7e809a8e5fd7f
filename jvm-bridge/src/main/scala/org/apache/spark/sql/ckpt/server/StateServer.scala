package org.apache.spark.sql.ckpt.server

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Path
import java.util.concurrent.{ExecutorService, SynchronousQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import py4j.ClientServer

import org.apache.spark.TaskContext
import org.apache.spark.sql.ckpt.{CkptErrors, StateServerLostException}
import org.apache.spark.sql.ckpt.settings.Json

/** The interface of the Python side; requests and answers are JSON (docs/stored-format.md names the fields). */
trait StateServerRpc {
  def call(method: String, request: String): String
}

/** One running state server and the connections to it. `home`: the folder that it has chosen for local files.
  *
  * py4j keeps one connection for every thread that ever called, and Spark's task threads come and go. All calls are
  * therefore made by a bounded set of permanent threads. A new thread is started only if all others are busy.
  */
private[ckpt] final class StateServer(process: Process, rpc: StateServerRpc, gateway: ClientServer, val home: Path) {
  private val callers = StateServer.callers()
  private val entrusted = scala.collection.mutable.LinkedHashMap.empty[Map[String, String], Int]
  private var entrustedEver = 0

  def alive: Boolean = process.isAlive

  /** Calls `method`. Raises CkptException for errors of the engine, StateServerLostException for a lost server.
    *
    * If the task is killed, its thread leaves a call that takes long, such as one that waits for a place. `leftBehind`
    * then gets the answer.
    */
  def call(method: String, request: ObjectNode, leftBehind: JsonNode => Unit = _ => ()): JsonNode = {
    if (Option(TaskContext.get()).exists(_.attemptNumber() > 0)) request.put("again", true)
    val text = Json.mapper.writeValueAsString(request)
    val settled = new AtomicBoolean
    val answer =
      try {
        Uninterrupted.get(
          callers.submit { () =>
            val answered = Json.mapper.readTree(rpc.call(method, text))
            if (!settled.compareAndSet(false, true)) Option(answered.get("ok")).foreach(leftBehind)
            answered
          },
          settled.compareAndSet(false, true))
      } catch {
        case left: LeftCallException =>
          throw CkptErrors.lifecycle(s"The task was killed while the state server was busy with '$method'.", left)
        case NonFatal(failure) =>
          throw new StateServerLostException(
            s"The state server (pid ${Processes.pid(process)}) did not answer '$method'${ending()}.", failure)
      }
    if (answer.has("error")) throw Json.error(answer.get("error"))
    answer.get("ok")
  }

  /** Passes secrets to the server through a pipe that nobody else can read. (py4j can be configured to log what it
    * sends.) Returns the number by which a request names them.
    */
  def entrust(secrets: Map[String, String]): Int = entrusted.synchronized {
    entrusted.getOrElse(
      secrets, {
        val number = entrustedEver
        write(Json.obj().put("number", number).set[ObjectNode]("secrets", Json.strings(secrets)))
        entrustedEver += 1
        entrusted.put(secrets, number)
        // Keys may keep changing. Those that were dropped here are passed again, under another number, when needed.
        if (entrusted.size > StateServer.SecretsKept) entrusted.remove(entrusted.head._1)
        number
      })
  }

  private def write(line: ObjectNode): Unit =
    try {
      process.getOutputStream.write((Json.mapper.writeValueAsString(line) + "\n").getBytes(UTF_8))
      process.getOutputStream.flush()
    } catch {
      case failure: java.io.IOException =>
        throw new StateServerLostException(
          s"The state server (pid ${Processes.pid(process)}) takes no secrets${ending()}.",
          failure)
    }

  /** Closes this side of a server that has ended. */
  def release(): Unit = {
    callers.shutdown()
    gateway.shutdown()
  }

  def stop(): Unit = {
    release()
    process.getOutputStream.close()
    if (!process.waitFor(StateServer.StopSeconds, TimeUnit.SECONDS)) Processes.kill(process)
  }

  private def ending(): String =
    if (hasEnded) s"; it ended with status ${process.exitValue}" else ""

  /** Does not wait on an interrupted thread, as of a killed task: the wait would raise another error. */
  private def hasEnded: Boolean =
    if (Thread.currentThread.isInterrupted) !process.isAlive else process.waitFor(200, TimeUnit.MILLISECONDS)
}

private[ckpt] object StateServer {
  private val Callers = 32
  private val StopSeconds = 5L
  private val SecretsKept = 64

  private def callers(): ExecutorService = new ThreadPoolExecutor(
    0, Callers, Long.MaxValue, TimeUnit.NANOSECONDS, new SynchronousQueue[Runnable],
    work => {
      val thread = new Thread(work, "ckpt-state-server-call")
      thread.setDaemon(true)
      thread
    },
    (call, pool) => Uninterrupted.hand(call, pool))
}
