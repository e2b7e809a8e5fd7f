package org.apache.spark.sql.ckpt.server

import java.io.OutputStreamWriter
import java.net.InetAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Path, Paths}
import java.security.SecureRandom
import java.util.Base64
import java.util.concurrent.TimeUnit

import scala.concurrent.duration.FiniteDuration

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import py4j.ClientServer

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.settings.{Json, Settings}
import org.apache.spark.util.Utils

/** Starts and ends the processes of state servers. */
private[ckpt] object ServerProcess extends Logging {
  private val LastWordsMs = 1000L

  /** The same number as `PROTOCOL` in `state_store/server/rpc.py`. */
  val Protocol = 4

  /** Does what `-m` does, but leaves the working folder out of the path: a user's file must not replace a module. */
  private val Program = "import sys; " +
    "sys.version_info >= (3, 10) or " +
    "sys.exit('pyspark-ckpt needs Python 3.10 or newer, this is ' + sys.version.split()[0]); " +
    "sys.path[:1] = [path for path in sys.path[:1] if path]; import runpy; " +
    "runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"
  private val Module = "pyspark_ckpt.state_store.server"

  /** The address on which the server listens; Java's own loopback address may be that of IPv6. */
  private val Loopback = InetAddress.getByAddress(Array[Byte](127, 0, 0, 1))

  /** Starts a server, which chooses its folder; `home` is that of an earlier server of this JVM. */
  def start(settings: Settings, home: Option[Path]): StateServer = {
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
      val folder = Paths.get(hello.get("home").asText)
      logInfo(s"state server ${hello.path("version").asText} runs as pid ${Processes.pid(process)} in $folder")
      new StateServer(process, rpc, gateway, folder)
    } catch {
      case failure: Throwable =>
        Processes.kill(process)
        throw failure
    }
  }

  private def greet(
      process: Process,
      settings: Settings,
      token: String,
      home: Option[Path],
      log: ServerLog,
      stdout: BoundedLines): JsonNode = {
    val request = Json.obj()
    request.put("protocol", Protocol).put("token", token).put("executor_dir", executorDir.toString)
      .put("executor", Option(SparkEnv.get).fold("none")(_.executorId)).put("home", home.fold("")(_.toString))
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
    // An answer of protocol 1 that is an error does not name its protocol.
    val spoken = hello.path("protocol").asInt(1)
    if (spoken != Protocol) {
      throw CkptErrors.noProcess(
        s"The jar of pyspark-ckpt speaks protocol $Protocol, but the state server in the Python '${settings.python}' " +
          s"speaks protocol $spoken.",
        "Install the same release of pyspark-ckpt on the driver and on every executor.")
    }
    if (hello.has("error")) throw Json.error(hello.get("error"))
    hello
  }

  /** A folder that lives as long as this executor: the first one of its block manager. */
  private def executorDir: Path =
    Option(SparkEnv.get).flatMap(_.blockManager.diskBlockManager.localDirs.headOption)
      .fold(Paths.get(Utils.getLocalDir(new SparkConf)))(_.toPath).toAbsolutePath

  /** Ends a server that has not said hello; returns an error with the visible reason. */
  private def notStarted(
      process: Process,
      settings: Settings,
      log: ServerLog,
      greeting: Greeting): CkptException = {
    val ended = process.waitFor(1, TimeUnit.SECONDS)
    val streamEnded = greeting.hasEnded
    if (ended) log.join(LastWordsMs) // before the end of the process closes its stderr, and what is unread is lost
    Processes.kill(process)
    process.waitFor(5, TimeUnit.SECONDS)
    log.join(LastWordsMs)
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
