package org.apache.spark.sql.ckpt
package server

import java.io.OutputStreamWriter
import java.net.InetAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Path
import java.security.SecureRandom
import java.util.Base64
import java.util.concurrent.{
  ExecutionException,
  ExecutorService,
  Future,
  RejectedExecutionException,
  SynchronousQueue,
  ThreadPoolExecutor,
  TimeUnit,
  TimeoutException
}
import java.util.concurrent.atomic.AtomicBoolean

import scala.concurrent.duration.FiniteDuration
import scala.util.{Failure, Success, Try}
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode
import py4j.ClientServer

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging

/** The interface of the Python side; requests and answers are JSON (docs/stored-format.md names the fields). */
trait StateServerRpc {
  def call(method: String, request: String): String
}

/** One running state server and the connections to it.
  *
  * py4j keeps one connection for every thread that ever called, and Spark's task threads come and go. All calls are
  * therefore made by a bounded set of permanent threads. A new thread is started only if all others are busy.
  */
private[ckpt] final class StateServer(process: Process, rpc: StateServerRpc, gateway: ClientServer) extends Logging {
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
            s"The state server (pid ${process.pid}) did not answer '$method'${ending()}.", failure)
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
        throw new StateServerLostException(s"The state server (pid ${process.pid}) takes no secrets${ending()}.",
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
    if (!process.waitFor(StateServer.StopSeconds, TimeUnit.SECONDS)) StateServer.kill(process)
  }

  private def ending(): String =
    if (hasEnded) s"; it ended with status ${process.exitValue}" else ""

  /** Does not wait on an interrupted thread, as of a killed task: the wait would raise another error. */
  private def hasEnded: Boolean =
    if (Thread.currentThread.isInterrupted) !process.isAlive else process.waitFor(200, TimeUnit.MILLISECONDS)
}

/** Starts state servers. */
private[ckpt] object StateServer extends Logging {
  private val Callers = 32
  private val StopSeconds = 5L
  private val SecretsKept = 64

  /** Does what `-m` does, but leaves the working folder out of the path: a user's file must not replace a module. */
  private val Program = "import sys; " +
    "sys.version_info >= (3, 10) or " +
    "sys.exit('pyspark-ckpt needs Python 3.10 or newer, this is ' + sys.version.split()[0]); " +
    "sys.path[:1] = [path for path in sys.path[:1] if path]; import runpy; " +
    "runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"
  private val Module = "pyspark_ckpt.state_store.server"

  /** The address on which the server listens; Java's own loopback address may be that of IPv6. */
  private val Loopback = InetAddress.getByAddress(Array[Byte](127, 0, 0, 1))

  private def callers(): ExecutorService = new ThreadPoolExecutor(
    0, Callers, Long.MaxValue, TimeUnit.NANOSECONDS, new SynchronousQueue[Runnable],
    work => {
      val thread = new Thread(work, "ckpt-state-server-call")
      thread.setDaemon(true)
      thread
    },
    (call, pool) => Uninterrupted.hand(call, pool))

  /** Starts a server on the private folder `home`, which an earlier server may have left. */
  def start(settings: Settings, home: Path): StateServer = {
    val python = settings.python
    val process =
      try {
        new ProcessBuilder(python, "-c", Program, Module).start()
      } catch {
        case failure: java.io.IOException =>
          throw CkptErrors.noProcess(
            s"The state server cannot be started with the Python '$python': ${failure.getMessage}.",
            s"Set ${Settings.Prefix}python to a Python in which pyspark-ckpt is installed.", failure)
      }
    val token = newToken()
    val log = new ServerLog(new BoundedLines(process.getErrorStream, BoundedLines.MaxBytes), "ckpt-state-server-log")
    log.start()
    try {
      val stdout = new BoundedLines(process.getInputStream, BoundedLines.MaxBytes)
      val hello = greet(process, settings, token, home, log, stdout)
      new ServerLog(stdout, "ckpt-state-server-stdout").start() // if nobody reads the pipe, its writers block
      val gateway = new ClientServer.ClientServerBuilder()
        .javaPort(0).javaAddress(Loopback).autoStartJavaServer(false)
        .pythonPort(hello.get("port").asInt).pythonAddress(Loopback)
        .authToken(token)
        .build()
      val rpc = gateway.getPythonServerEntryPoint(Array[Class[_]](classOf[StateServerRpc])).asInstanceOf[StateServerRpc]
      logInfo(s"state server ${hello.path("version").asText} runs as pid ${process.pid} in $home")
      new StateServer(process, rpc, gateway)
    } catch {
      case failure: Throwable =>
        kill(process)
        throw failure
    }
  }

  private def greet(
      process: Process,
      settings: Settings,
      token: String,
      home: Path,
      log: ServerLog,
      stdout: BoundedLines): JsonNode = {
    val request = Json.obj()
    request.put("protocol", 1).put("token", token).put("local_dir", home.toString)
      .put("memory_bytes", settings.budget.serverBytes)
    request.set[ObjectNode]("options", Json.strings(settings.options))
    val in = new OutputStreamWriter(process.getOutputStream, UTF_8)
    try {
      in.write(Json.mapper.writeValueAsString(request) + "\n")
      in.flush() // The stream stays open: its end tells the server that this JVM is gone.
    } catch {
      case _: java.io.IOException => () // it has ended, and its output says why
    }
    val greeting = new Greeting(stdout)
    val hello = greeting.await(settings.startTimeout)
      .getOrElse(throw notStarted(process, settings, log, greeting))
    if (hello.has("error")) throw Json.error(hello.get("error"))
    if (hello.path("protocol").asInt != 1) {
      throw CkptErrors.noProcess(
        s"The state server speaks protocol ${hello.path("protocol").asText}, and the jar speaks 1.",
        "Install the same release of pyspark-ckpt on the driver and on every executor.")
    }
    hello
  }

  /** Ends a process and those that it has started: the process may be a wrapper around Python. */
  private def kill(process: Process): Unit = {
    val started = process.descendants.toList
    process.destroyForcibly()
    started.forEach(each => each.destroyForcibly(): Unit)
  }

  /** Ends a server that has not said hello; returns an error with the visible reason. */
  private def notStarted(
      process: Process,
      settings: Settings,
      log: ServerLog,
      greeting: Greeting): CkptException = {
    val ended = process.waitFor(1, TimeUnit.SECONDS)
    val streamEnded = greeting.hasEnded
    kill(process)
    process.waitFor(5, TimeUnit.SECONDS)
    log.join(1000)
    val how =
      if (ended) s"ended with status ${process.exitValue} before it reported its port"
      else if (streamEnded) "closed or redirected its stdout before it reported its port there"
      else s"did not report its port within ${shown(settings.startTimeout)}"
    val written = Seq("stderr" -> log.last, "stdout" -> greeting.others).collect {
      case (name, lines) if lines.nonEmpty => s"; its $name: ${lines.mkString("\n")}"
    }.mkString
    val option = s"${Settings.Prefix}python"
    val hint =
      if (log.last.exists(line => line.contains("No module named") && !line.contains("'encodings'"))) {
        s"Install pyspark-ckpt into that Python on every executor, or set $option to one that has it."
      } else if (!ended && streamEnded) {
        "Leave the stdout of that Python to the state server (see its sitecustomize, or the wrapper around it), or " +
          s"set $option to another one."
      } else if (!ended) {
        s"Check whether that Python starts by itself, set $option to another one, or raise " +
          s"${Settings.Prefix}startTimeout."
      } else {
        s"Check whether '${settings.python} -m pyspark_ckpt --help' works on that machine, or set $option to " +
          "another one."
      }
    CkptErrors.noProcess(
      s"The state server did not start with the Python '${settings.python}': it $how$written.", hint)
  }

  private def shown(time: FiniteDuration): String =
    if (time.toMillis % 1000 == 0) s"${time.toSeconds} s" else s"${time.toMillis} ms"

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    Base64.getUrlEncoder.withoutPadding.encodeToString(bytes)
  }
}

/** Raised on an interrupted thread that has stopped waiting for the answer to its call. */
private[ckpt] final class LeftCallException extends RuntimeException

/** Waits for an answer although the task is being killed, because leaving does not undo the request. The wait is short,
  * because the thread of a task holds a core, and the server may wait minutes for a place.
  */
private[ckpt] object Uninterrupted {
  private val LeaveNanos = TimeUnit.SECONDS.toNanos(2)

  /** Passes a call to a pool whose threads are all busy. Raises LeftCallException on an interrupted thread. */
  def hand(call: Runnable, pool: ThreadPoolExecutor): Unit =
    insist(mayLeave = true) { nanos =>
      if (pool.isShutdown) throw new RejectedExecutionException("The state server has ended.")
      pool.getQueue.offer(call, math.min(nanos, TimeUnit.SECONDS.toNanos(1)), TimeUnit.NANOSECONDS)
    }

  /** Returns the answer. Raises LeftCallException on a thread that was interrupted a while ago, if it `mayLeave`. */
  def get[T](answer: Future[T], mayLeave: => Boolean): T = {
    var outcome = Option.empty[Try[T]]
    insist(mayLeave) { nanos =>
      try outcome = Some(Success(answer.get(nanos, TimeUnit.NANOSECONDS)))
      catch {
        case _: TimeoutException => ()
        case failure: ExecutionException => outcome = Some(Failure(failure.getCause))
      }
      outcome.nonEmpty
    }
    outcome.get.get
  }

  /** Repeats a wait of limited nanoseconds until `isOver`, or until it is time to leave. */
  private def insist(mayLeave: => Boolean)(isOver: Long => Boolean): Unit = {
    var interrupted = false
    var until = Long.MaxValue
    try {
      var over = false
      while (!over) {
        if (until != Long.MaxValue && System.nanoTime - until >= 0) {
          if (mayLeave) throw new LeftCallException
          until = Long.MaxValue // the answer is about to come
        }
        val left = if (until == Long.MaxValue) LeaveNanos else until - System.nanoTime
        try over = isOver(math.max(left, 1))
        catch {
          case _: InterruptedException =>
            if (!interrupted) until = System.nanoTime + LeaveNanos
            interrupted = true
        }
      }
    } finally {
      if (interrupted) Thread.currentThread().interrupt()
    }
  }
}

/** JSON as this package uses it. */
private[ckpt] object Json {
  val mapper = new ObjectMapper

  def obj(): ObjectNode = mapper.createObjectNode()

  def strings(values: Map[String, String]): ObjectNode = {
    val node = obj()
    values.foreach { case (key, value) => node.put(key, value) }
    node
  }

  def bytes(node: JsonNode, field: String): Array[Byte] =
    if (node.hasNonNull(field)) Base64.getDecoder.decode(node.get(field).asText) else null

  def text(node: JsonNode, field: String): String = if (node.hasNonNull(field)) node.get(field).asText else null

  def tryParse(line: String): Option[JsonNode] =
    try Some(mapper.readTree(line))
    catch { case _: com.fasterxml.jackson.core.JsonProcessingException => None }

  def error(node: JsonNode): CkptException = new CkptException(
    node.path("kind").asText("InternalError"), node.path("message").asText, node.path("hint").asText(""),
    node.path("retryable").asBoolean(false), null)
}
