package org.apache.spark.sql.ckpt
package server

import java.nio.file.{Files, Path}
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

import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

class EngineSuite extends AnyFunSuite with BeforeAndAfterEach {
  private var folder: Path = _

  override def beforeEach(): Unit = {
    Engine.stop()
    folder = Files.createTempDirectory("engine")
  }

  override def afterEach(): Unit = {
    Engine.stop()
    Readers.deleteFolder(folder)
  }

  private def settings(python: String): Settings =
    Settings(Map("python" -> python, "localDir" -> folder.toString))

  test("gives way to other settings while no server has started, and says so") {
    val wrong = Engine.get(settings("/no/such/python"))
    assertThrows[CkptException](wrong.server())
    val right = Engine.get(settings(sys.env.getOrElse("PYTHON", "python3")))
    assert(wrong.isReplaced && !right.isReplaced)
    assert(right.server().alive)
    assertThrows[CkptException](wrong.server())
  }

  test("keeps its settings when a server has started") {
    val first = Engine.get(settings(sys.env.getOrElse("PYTHON", "python3")))
    first.server()
    assert(Engine.get(settings("/no/such/python")) eq first)
    assert(!first.isReplaced)
  }

  test("a call to a server that was killed names its process, and may be repeated") {
    val server = Engine.get(settings(sys.env.getOrElse("PYTHON", "python3"))).server()
    ProcessHandle.current.children.forEach(child => child.destroyForcibly(): Unit)
    val lost = intercept[CkptException](server.call("stats", Json.obj()))
    assert(lost.kind == "ProcessError" && lost.retryable)
  }

  test("a folder that a killed process has left is taken once, and never one that is in use or another's") {
    val inUse = LocalFolder.make(folder, "1")
    assert(LocalFolder.takeLeftOver(folder).isEmpty)
    val home = Files.createDirectory(folder.resolve("ckpt-2-left"))
    Files.createFile(home.resolve("owner.lock"))
    Files.setPosixFilePermissions(home, PosixFilePermissions.fromString("rwxrwxrwx"))
    assert(LocalFolder.takeLeftOver(folder).isEmpty)
    Files.setPosixFilePermissions(home, PosixFilePermissions.fromString("rwx------"))
    val taken = LocalFolder.takeLeftOver(folder)
    assert(taken.map(_.path).contains(home))
    assert(LocalFolder.takeLeftOver(folder).isEmpty)
    taken.get.delete()
    inUse.delete()
    assert(folder.toFile.list.isEmpty)
    assert(LocalFolder.takeLeftOver(folder.resolve("nothing")).isEmpty)
  }

  test("folders that killed processes have left are deleted when nobody has used them for a week") {
    val homes = Seq("old", "new", "newest").map { name =>
      val home = Files.createDirectory(folder.resolve(s"ckpt-1-$name"))
      Files.setPosixFilePermissions(home, PosixFilePermissions.fromString("rwx------"))
      val old = if (name == "old") TimeUnit.DAYS.toMillis(8) else if (name == "new") TimeUnit.DAYS.toMillis(1) else 0
      for (file <- Seq("owner.lock", "server.lock")) {
        Files.createFile(home.resolve(file)).toFile.setLastModified(System.currentTimeMillis() - old)
      }
      home
    }
    val taken = LocalFolder.takeLeftOver(folder)
    assert(taken.map(_.path).contains(homes.last))
    assert(folder.toFile.list.toSet == Set("ckpt-1-new", "ckpt-1-newest"))
    taken.get.delete()
    LocalFolder.takeLeftOver(folder).get.delete()
    assert(folder.toFile.list.isEmpty)
  }

  test("a folder that a state server of an earlier process does not let go is left to it") {
    val home = Files.createDirectory(folder.resolve("ckpt-1-held"))
    Files.setPosixFilePermissions(home, PosixFilePermissions.fromString("rwx------"))
    Files.createFile(home.resolve("owner.lock"))
    val lock = Files.createFile(Files.createDirectory(home.resolve("server")).resolve("server.lock"))
    val python = sys.env.getOrElse("PYTHON", "python3")
    val program = s"import fcntl, sys; file = open('$lock'); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); " +
      "sys.stdin.read()"
    val stuck = new ProcessBuilder(python, "-c", program).start()
    try {
      stuck.getInputStream.read()
      val first = Engine.get(settings(python))
      assert(intercept[CkptException](first.server()).kind == "ConflictError")
      assert(first.isReplaced)
      assert(Engine.get(settings(python)).server().alive)
      assert(Files.exists(lock))
      assert(folder.toFile.list.length == 2)
    } finally stuck.destroyForcibly()
    Engine.stop()
    assert(folder.toFile.list.toSeq == Seq("ckpt-1-held"))
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
