package org.apache.spark.sql.ckpt
package fence

import java.nio.file.{Files, Path => LocalPath}
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, Path}
import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

/** Files of logs, and the numbers of runs, on a file system. */
class FencedFilesSuite extends AnyFunSuite with BeforeAndAfterEach {
  private var folder: LocalPath = _
  private def path(name: String) = new Path(folder.resolve(name).toString)
  private def manager = new FencedCheckpointFileManager(path("log"), new Configuration)
  private def runs = new Runs(path("checkpoint"), new Configuration)
  private def names(of: String): Set[String] =
    Option(folder.resolve(of).toFile.list).fold(Set.empty[String])(_.toSet)

  override def beforeEach(): Unit = {
    folder = Files.createTempDirectory("fence")
    Files.createDirectory(folder.resolve("log"))
  }

  private def write(name: String, text: String): Unit = {
    val output = manager.createAtomic(path(name), overwriteIfPossible = false)
    try {
      output.write(text.getBytes)
      output.close()
    } catch {
      case failure: Throwable =>
        output.cancel()
        throw failure
    }
  }

  private def together[A](count: Int)(task: Int => A): Seq[A] = {
    val threads = Executors.newFixedThreadPool(count)
    try threads.invokeAll((0 until count).map(n => (() => task(n)): Callable[A]).asJava).asScala.map(_.get).toSeq
    finally threads.shutdown()
  }

  test("one of many writers of an entry succeeds, the others are told, and nothing else is left") {
    for (round <- 0 until 20) {
      val came = together(8) { writer =>
        try { write(s"log/$round", writer.toString); true }
        catch { case _: FileAlreadyExistsException => false }
      }
      assert(came.count(identity) == 1)
      assert(Files.readString(folder.resolve(s"log/$round")) == came.indexOf(true).toString)
    }
    assert(names("log") == (0 until 20).map(_.toString).toSet)
  }

  test("an entry that is cancelled leaves nothing, and one that was closed stays") {
    val cancelled = manager.createAtomic(path("log/1"), overwriteIfPossible = false)
    cancelled.write(1)
    cancelled.cancel()
    cancelled.close()
    val closed = manager.createAtomic(path("log/2"), overwriteIfPossible = false)
    closed.close()
    closed.cancel()
    assert(names("log") == Set("2"))
  }

  test("an entry can be read where an earlier file of its name has left a checksum") {
    Files.write(folder.resolve("log/.3.crc"), Array[Byte](99, 114, 99, 0, 0, 0, 2, 0, 1, 2, 3, 4))
    write("log/3", "content")
    val input = manager.open(path("log/3"))
    try assert(new String(input.readAllBytes) == "content")
    finally input.close()
  }

  test("a file that may be written over is left to Spark's own manager") {
    for (text <- Seq("one", "two")) {
      val output = manager.createAtomic(path("log/state"), overwriteIfPossible = true)
      output.write(text.getBytes)
      output.close()
    }
    assert(Files.readString(folder.resolve("log/state")) == "two")
  }

  test("each of many runs that begin together takes a number of its own") {
    val taken = together(8)(n => runs.take(f"0000000$n-0000-0000-0000-000000000000", "app on host"))
    assert(taken.toSet == (1L to 8L).toSet)
    assert(runs.list() == (1L to 8L))
  }

  test("old numbers are deleted, and none is used twice") {
    val taken = (1 to 150).map(n => runs.take(f"$n%08d-0000-0000-0000-000000000000", "app on host"))
    assert(taken == (1L to 150L))
    assert(runs.list() == (87L to 150L))
  }

  test("the error of a run that is over names the run that followed, and its driver") {
    val own = runs.take("00000001-0000-0000-0000-000000000000", "app-1 on host-1")
    val next = runs.take("00000002-0000-0000-0000-000000000000", "app-2 on host-2")
    val refusal = runs.refusal(own, next)
    assert(refusal.kind == "ConflictError")
    assert(refusal.getMessage.contains("run 2 (run id 00000002-0000-0000-0000-000000000000, driver app-2 on host-2)"))
  }

  private def put(epoch: String, content: String): Unit = {
    val target = Files.createDirectories(folder.resolve("checkpoint/_ckpt/runs")).resolve(s"$epoch.run")
    Files.writeString(target, content)
  }

  test("a run goes on while its number is there, and is over when that is gone or is another's") {
    val run = "00000001-0000-0000-0000-000000000000"
    var ends = 0
    val fence = new Fence(runs.take(run, "app on host"), run, runs, _ => ends += 1)
    def refusal = intercept[CkptException](fence.check()).getMessage
    fence.check()
    put("0000000001", s"""{ "run_id" : "$run" }""")
    fence.check()
    assert(ends == 0)
    put("0000000001", """{"run_id":"another"}""")
    assert(refusal.contains("0000000001.run is gone, or is that of another run"))
    put("0000000001", "{")
    assert(refusal.contains("0000000001.run is damaged: it is not JSON"))
    Files.delete(folder.resolve("checkpoint/_ckpt/runs/0000000001.run"))
    assert(refusal.contains("is gone"))
    put("0000000002", "{")
    assert(refusal.contains("run 2 (which cannot be read: [FormatError] "))
    assert(ends == 3)
  }

  test("an entry that comes into another checkpoint, in the place of its own, is taken back") {
    val run = "00000001-0000-0000-0000-000000000000"
    val fence = new Fence(runs.take(run, "app on host"), run, runs)
    for ((there, number) <- Seq((Seq("another"), 7), (Seq("another", "next"), 8), (Nil, 9))) {
      fence.check()
      val entry = manager.createFenced(path(s"log/$number"), fence)
      Files.delete(folder.resolve("checkpoint/_ckpt/runs/0000000001.run"))
      for ((id, epoch) <- there.zip(1 to 2)) put(s"000000000$epoch", s"""{"run_id":"$id"}""")
      intercept[LostCheckpointException](entry.close())
      assert(names("log").isEmpty)
      Files.deleteIfExists(folder.resolve("checkpoint/_ckpt/runs/0000000002.run"))
      put("0000000001", s"""{"run_id":"$run"}""")
    }
  }

  test("no run follows the last number, and the error names it") {
    put("9999999999", "")
    val refusal = intercept[CkptException](runs.take("00000001-0000-0000-0000-000000000000", "app on host"))
    assert(refusal.kind == "FormatError")
    assert(refusal.getMessage.contains("_ckpt/runs/9999999999.run has the last number"))
    assert(runs.list() == Seq(9999999999L))
  }
}
