package org.apache.spark.sql.ckpt.transactions

import java.nio.file.{Files, Path, StandardWatchEventKinds}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.{
  CompletableFuture,
  CountDownLatch,
  LinkedBlockingQueue,
  SynchronousQueue,
  ThreadPoolExecutor,
  TimeUnit
}

import scala.util.Try

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.CkptException
import org.apache.spark.sql.ckpt.server.{LeftCallException, LocalFolder, StateServer, Uninterrupted}
import org.apache.spark.sql.ckpt.settings.{Json, Settings}

class SharedRuntimeSuite extends AnyFunSuite with RuntimeFolder {
  private def settings(python: String): Settings =
    Settings(Map("python" -> python, "localDir" -> folder.toString))

  test("gives way to other settings while no server has started, and says so") {
    val wrong = SharedRuntime.get(settings("/no/such/python"))
    assertThrows[CkptException](wrong.server())
    val right = SharedRuntime.get(settings(python))
    assert(wrong.isReplaced && !right.isReplaced)
    assert(right.server().alive)
    assertThrows[CkptException](wrong.server())
  }

  test("keeps its settings when a server has started") {
    val first = SharedRuntime.get(settings(python))
    first.server()
    assert(SharedRuntime.get(settings("/no/such/python")) eq first)
    assert(!first.isReplaced)
  }

  test("other options of a later query are no reason for another runtime unless the process keeps them") {
    val first = SharedRuntime.get(settings("/no/such/python"))
    val later = Settings(first.settings.options ++ Map("snapshotEveryVersions" -> "3", "compression" -> "zstd"))
    assert(SharedRuntime.get(later) eq first)
    val other = Settings(later.options + ("memoryLimit" -> "1g"))
    assert(SharedRuntime.get(other).settings == other)
    assert(first.isReplaced)
  }

  test("a call to a server that was killed names its process, and may be repeated") {
    val server = SharedRuntime.get(settings(python)).server()
    ProcessHandle.current.children.forEach(child => child.destroyForcibly(): Unit)
    val lost = intercept[CkptException](server.call("stats", Json.obj()))
    assert(lost.kind == "ProcessError" && lost.retryable)
  }

  /** Kills the server's process. Returns when this process has seen its end, as `Process.isAlive` reports it: a
    * `ProcessHandle` may report it earlier.
    */
  private def kill(server: StateServer): Unit = {
    ProcessHandle.current.children.forEach(child => child.destroyForcibly(): Unit)
    while (server.alive) Thread.sleep(1)
  }

  /** What a killed executor has left. */
  private def leave(name: String): Path = {
    val home = Files.createDirectory(folder.resolve(name))
    Files.setPosixFilePermissions(home, PosixFilePermissions.fromString("rwx------"))
    Files.createFile(home.resolve("owner.lock"))
    Files.createFile(Files.createDirectory(home.resolve("server")).resolve("server.lock"))
    home
  }

  private def run(program: String): Process = {
    val process = new ProcessBuilder(python, "-c", s"import fcntl, sys; $program").start()
    process.getInputStream.read()
    process
  }

  test("uses the folder that its state server takes over from a killed process, locks it, and deletes it at the end") {
    val home = leave("ckpt-2-left")
    val server = SharedRuntime.get(settings(python)).server()
    assert(server.home == home)
    val attempt = run(s"fcntl.lockf(open('${home.resolve("owner.lock")}', 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)")
    assert(attempt.waitFor() == 1, "this process holds the lock")
    SharedRuntime.stop()
    assert(folder.toFile.list.isEmpty)
  }

  test("keeps its folder and its readers when its state server is killed") {
    val runtime = SharedRuntime.get(settings(python))
    val killed = runtime.server()
    val scratch = Files.createDirectories(killed.home.resolve("readers").resolve("secondary-1"))
    kill(killed)
    val next = runtime.server()
    assert((next ne killed) && next.home == killed.home)
    assert(Files.exists(scratch))
    assert(folder.toFile.list.length == 1)
  }

  test("a folder that a state server of an earlier process does not let go is left to it") {
    val home = leave("ckpt-1-held")
    val lock = home.resolve("server").resolve("server.lock")
    val stuck = run(s"file = open('$lock'); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()")
    try {
      assert(SharedRuntime.get(settings(python)).server().alive)
      assert(Files.exists(lock))
      assert(folder.toFile.list.length == 2)
    } finally stuck.destroyForcibly()
    SharedRuntime.stop()
    assert(folder.toFile.list.toSeq == Seq("ckpt-1-held"))
  }

  test("waits for a state server that looks whether its folder is free") {
    val lock = leave("ckpt-1-asked").resolve("owner.lock")
    val takeLock = s"file = open('$lock', 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); print(1, flush=True)"
    run(s"import time; $takeLock; time.sleep(1)")
    val held = LocalFolder.hold(lock.getParent)
    val attempt = run(s"fcntl.lockf(open('$lock', 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)")
    assert(attempt.waitFor() == 1, "this process holds the lock")
    held.leave()
  }

  test("a folder that is taken, or gone, before this process locks it fails the task, which may try again") {
    val lock = leave("ckpt-1-taken").resolve("owner.lock")
    val other =
      run(s"file = open('$lock', 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()")
    try {
      for (words <- Seq("in use by another process", "cannot be locked")) {
        val lost = intercept[CkptException](LocalFolder.hold(lock.getParent))
        assert(lost.kind == "LifecycleError" && lost.retryable && lost.getMessage.contains(words), lost)
        Files.deleteIfExists(lock)
      }
    } finally other.destroyForcibly()
  }

  test("deletes the lock of its folder last") {
    val home = leave("ckpt-1-ending")
    for (name <- 'a' to 'z') Files.createDirectory(home.resolve(name.toString))
    val watch = home.getFileSystem.newWatchService()
    val events = home.register(watch, StandardWatchEventKinds.ENTRY_DELETE)
    LocalFolder.hold(home).delete()
    val deleted = new scala.collection.mutable.ArrayBuffer[String]
    while (deleted.size < 28) {
      assert(watch.poll(10, TimeUnit.SECONDS) != null, deleted)
      events.pollEvents.forEach(event => deleted += event.context.toString)
      events.reset()
    }
    watch.close()
    assert(deleted.last == "owner.lock")
  }

  test("a later query with other options waits for the first state server, which is starting, and keeps it") {
    val (slow, starting) = (folder.resolve("slow-python"), folder.resolve("starting"))
    Files.writeString(slow, s"#!/bin/sh\ntouch $starting\nsleep 2\nexec $python \"$$@\"\n")
    Files.setPosixFilePermissions(slow, PosixFilePermissions.fromString("rwx------"))
    val runtime = SharedRuntime.get(settings(slow.toString))
    val server = CompletableFuture.supplyAsync(() => runtime.server())
    while (!Files.exists(starting)) Thread.sleep(10)
    val later = SharedRuntime.get(Settings(runtime.settings.options + ("memoryLimit" -> "1g")))
    assert(server.get(60, TimeUnit.SECONDS).alive)
    assert(later eq runtime)
  }

  test("moves to another folder when its own is gone") {
    val runtime = SharedRuntime.get(settings(python))
    val first = runtime.server()
    kill(first)
    LocalFolder.deleteAll(first.home)
    val next = runtime.server()
    assert(next.alive && next.home != first.home && Files.isDirectory(next.home))
    SharedRuntime.stop()
    assert(folder.toFile.list.isEmpty)
  }

  test("deletes a link in its folder, and not what the link leads to") {
    val (home, elsewhere) =
      (Files.createDirectory(folder.resolve("home")), Files.createDirectory(folder.resolve("else")))
    Files.createFile(elsewhere.resolve("file"))
    Files.createSymbolicLink(home.resolve("link"), elsewhere)
    LocalFolder.deleteAll(home)
    assert(!Files.exists(home) && Files.exists(elsewhere.resolve("file")))
  }

  test("a call is handed to a busy pool although its thread is interrupted, and stays interrupted") {
    val pool = new ThreadPoolExecutor(
      0, 1, Long.MaxValue, TimeUnit.NANOSECONDS, new SynchronousQueue[Runnable],
      (call: Runnable, pool: ThreadPoolExecutor) => Uninterrupted.hand(call, pool))
    val (busy, done) = (new CountDownLatch(1), new CountDownLatch(1))
    pool.execute(() => busy.await())
    @volatile var stillInterrupted = false
    val task = new Thread(() => {
      Thread.currentThread().interrupt()
      pool.execute(() => done.countDown())
      stillInterrupted = Thread.currentThread().isInterrupted
    })
    task.start()
    Thread.sleep(200)
    busy.countDown()
    assert(done.await(10, TimeUnit.SECONDS))
    task.join(10000)
    assert(stillInterrupted)
    pool.shutdown()
  }

  test("a thread that was interrupted leaves a call that goes on, unless its answer is there") {
    val outcomes = new LinkedBlockingQueue[Either[Throwable, String]]
    def ask(answer: CompletableFuture[String], mayLeave: Boolean): Unit = {
      val task = new Thread(() => {
        Thread.currentThread().interrupt()
        outcomes.add(Try(Uninterrupted.get(answer, mayLeave)).toEither)
        outcomes.add(Right(Thread.currentThread().isInterrupted.toString))
      })
      task.start()
    }
    def next() = outcomes.poll(30, TimeUnit.SECONDS)
    ask(new CompletableFuture[String], mayLeave = true)
    assert(next().left.exists(_.isInstanceOf[LeftCallException]))
    assert(next() == Right("true"))
    ask(CompletableFuture.completedFuture("answer"), mayLeave = true)
    assert(next() == Right("answer"))
    assert(next() == Right("true"))
    val late = new CompletableFuture[String]
    ask(late, mayLeave = false)
    assert(outcomes.poll(3, TimeUnit.SECONDS) == null)
    late.complete("late")
    assert(next() == Right("late"))
    assert(next() == Right("true"))
  }
}
