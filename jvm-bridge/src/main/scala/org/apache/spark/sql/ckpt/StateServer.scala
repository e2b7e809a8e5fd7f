package org.apache.spark.sql.ckpt

import java.io.{BufferedReader, InputStreamReader, OutputStreamWriter}
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
  TimeUnit
}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode
import py4j.ClientServer

import org.apache.spark.internal.Logging

/** What the Python side offers; requests and answers are JSON (docs/stored-format.md names the fields). */
trait StateServerRpc {
  def call(method: String, request: String): String
}

/** One running state server and the connections to it.
  *
  * py4j keeps one connection for every thread that ever called, and Spark's task threads come and go: so all calls are
  * made by a bounded set of threads that stay. A new one is started only when all others are calling.
  */
private[ckpt] final class StateServer(process: Process, rpc: StateServerRpc, gateway: ClientServer) extends Logging {
  private val callers = StateServer.callers()
  private val entrusted = scala.collection.mutable.HashMap.empty[Map[String, String], Int]

  def alive: Boolean = process.isAlive

  /** Calls `method`; errors of the engine come back as CkptException, a lost server as StateServerLostException. */
  def call(method: String, request: ObjectNode): JsonNode = {
    val text = Json.mapper.writeValueAsString(request)
    val answer =
      try {
        Json.mapper.readTree(Uninterrupted.get(callers.submit(() => rpc.call(method, text))))
      } catch {
        case NonFatal(failure) =>
          throw new StateServerLostException(
            s"the state server (pid ${process.pid}) did not answer '$method'${ending()}", failure)
      }
    if (answer.has("error")) throw Json.error(answer.get("error"))
    answer.get("ok")
  }

  /** Gives the server secrets by a pipe that nobody else can read, not by py4j, which can be told to log what it sends.
    * Returns the number by which a request names them.
    */
  def entrust(secrets: Map[String, String]): Int = entrusted.synchronized {
    entrusted.getOrElse(
      secrets, {
        val number = entrusted.size
        write(Json.obj().put("number", number).set[ObjectNode]("secrets", Json.strings(secrets)))
        entrusted.put(secrets, number)
        number
      })
  }

  private def write(line: ObjectNode): Unit =
    try {
      process.getOutputStream.write((Json.mapper.writeValueAsString(line) + "\n").getBytes(UTF_8))
      process.getOutputStream.flush()
    } catch {
      case failure: java.io.IOException =>
        throw new StateServerLostException(s"the state server (pid ${process.pid}) takes no secrets${ending()}",
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
    if (!process.waitFor(StateServer.StopSeconds, TimeUnit.SECONDS)) process.destroyForcibly()
  }

  private def ending(): String =
    if (hasEnded) s"; it ended with status ${process.exitValue}" else ""

  /** The thread of a task that Spark kills may not wait: that would fail in another way. */
  private def hasEnded: Boolean =
    if (Thread.currentThread.isInterrupted) !process.isAlive else process.waitFor(200, TimeUnit.MILLISECONDS)
}

/** Starts state servers. */
private[ckpt] object StateServer extends Logging {
  private val Callers = 32
  private val StopSeconds = 5L

  /** As `-m` does, but for the working folder, whose files are the user's: none may stand for a module of Python. */
  private val Program = "import sys; sys.path[:1] = [path for path in sys.path[:1] if path]; import runpy; " +
    "runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"
  private val Module = "pyspark_ckpt.state_store"

  /** Where the server listens; Java's own loopback address may be that of IPv6. */
  private val Loopback = InetAddress.getByAddress(Array[Byte](127, 0, 0, 1))

  private def callers(): ExecutorService = new ThreadPoolExecutor(
    0, Callers, Long.MaxValue, TimeUnit.NANOSECONDS, new SynchronousQueue[Runnable],
    work => {
      val thread = new Thread(work, "ckpt-state-server-call")
      thread.setDaemon(true)
      thread
    },
    (call, pool) => Uninterrupted.hand(call, pool))

  /** Starts a server on the private folder `home`, which an earlier one may have left. */
  def start(settings: Settings, home: Path): StateServer = {
    val python = settings.python
    val process =
      try {
        new ProcessBuilder(python, "-c", Program, Module).start()
      } catch {
        case failure: java.io.IOException =>
          throw new CkptException(
            "LifecycleError", s"the state server cannot be started with the Python '$python': ${failure.getMessage}",
            s"set ${Settings.Prefix}python to a Python in which pyspark-ckpt is installed", false, failure)
      }
    val token = newToken()
    val log = new ServerLog(process.getErrorStream)
    log.start()
    try {
      val hello = greet(process, settings, token, home, log)
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
        process.destroyForcibly()
        throw failure
    }
  }

  private def greet(process: Process, settings: Settings, token: String, home: Path, log: ServerLog): JsonNode = {
    val request = Json.obj()
    request.put("protocol", 1).put("token", token).put("local_dir", home.toString)
      .put("memory_bytes", settings.budget.serverBytes)
    request.set[ObjectNode]("options", Json.strings(settings.options))
    val in = new OutputStreamWriter(process.getOutputStream, UTF_8)
    val out = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8))
    val line =
      try {
        in.write(Json.mapper.writeValueAsString(request) + "\n")
        in.flush() // The stream stays open: its end tells the server that this JVM is gone.
        Deadline.read(out, settings.startTimeoutSeconds)
      } catch {
        case _: java.io.IOException => null
      }
    if (line == null) {
      process.destroyForcibly()
      process.waitFor(5, TimeUnit.SECONDS)
      val last = log.last
      val hint =
        if (last.contains("No module named")) {
          s"install pyspark-ckpt into that Python on every executor, or set ${Settings.Prefix}python to one that has it"
        } else {
          s"see the executor's log; ${Settings.Prefix}python chooses the Python"
        }
      throw new CkptException(
        "LifecycleError",
        s"the state server did not start with the Python '${settings.python}'" + (if (last.isEmpty) "" else s": $last"),
        hint, false, null)
    }
    val hello = Json.mapper.readTree(line)
    if (hello.has("error")) throw Json.error(hello.get("error"))
    if (hello.path("protocol").asInt != 1) {
      throw CkptErrors.lifecycle(
        s"the state server speaks protocol ${hello.path("protocol").asText}, the jar speaks 1: install the same " +
          "version of pyspark-ckpt on the driver and on every executor")
    }
    hello
  }

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    Base64.getUrlEncoder.withoutPadding.encodeToString(bytes)
  }
}

/** Carries the server's log lines (JSON, one a line) into this JVM's log, with their level and store. */
private[ckpt] final class ServerLog(stream: java.io.InputStream) extends Thread("ckpt-state-server-log") with Logging {
  @volatile var last: String = ""
  setDaemon(true)

  override def run(): Unit = {
    val lines = new BufferedReader(new InputStreamReader(stream, UTF_8))
    var line = lines.readLine()
    while (line != null) {
      carry(line)
      line = lines.readLine()
    }
  }

  private def carry(line: String): Unit = {
    val entry = if (line.startsWith("{")) Json.tryParse(line) else None
    entry match {
      case Some(json) =>
        val text = json.path("store").asText("") match {
          case "" => json.path("message").asText
          case store => s"[$store] ${json.path("message").asText}"
        }
        last = text
        json.path("level").asText match {
          case "ERROR" | "CRITICAL" => logError(text)
          case "WARNING" => logWarning(text)
          case "DEBUG" => logDebug(text)
          case _ => logInfo(text)
        }
      case None =>
        last = line
        logWarning(line)
    }
  }
}

/** Waits for an answer although the task is being killed: what was asked of the server is not undone by leaving. */
private[ckpt] object Uninterrupted {

  /** Hands a call to a pool whose threads are all busy. */
  def hand(call: Runnable, pool: ThreadPoolExecutor): Unit = {
    var interrupted = false
    var taken = false
    while (!taken) {
      if (pool.isShutdown) throw new RejectedExecutionException("the state server has ended")
      try taken = pool.getQueue.offer(call, 1, TimeUnit.SECONDS)
      catch { case _: InterruptedException => interrupted = true }
    }
    if (interrupted) Thread.currentThread().interrupt()
  }

  def get[T](answer: Future[T]): T = {
    var interrupted = false
    try {
      while (!answer.isDone) {
        try answer.get()
        catch {
          case _: InterruptedException => interrupted = true
          case _: ExecutionException => ()
        }
      }
      answer.get()
    } catch {
      case failure: ExecutionException => throw failure.getCause
    } finally {
      if (interrupted) Thread.currentThread().interrupt()
    }
  }
}

/** Reads one line, but not for ever. */
private[ckpt] object Deadline {
  def read(reader: BufferedReader, seconds: Long): String = {
    @volatile var line: String = null
    val thread = new Thread(
      () =>
        line =
          try reader.readLine()
          catch { case _: java.io.IOException => null },
      "ckpt-state-server-hello")
    thread.setDaemon(true)
    thread.start()
    thread.join(seconds * 1000)
    line
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
