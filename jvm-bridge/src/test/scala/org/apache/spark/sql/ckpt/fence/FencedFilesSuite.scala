package org.apache.spark.sql.ckpt.fence

import java.io.OutputStream
import java.net.URI
import java.nio.file.{Files, Path => LocalPath}
import java.util.EnumSet
import java.util.concurrent.{Callable, Executors}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  CreateFlag,
  DelegateToFileSystem,
  FSDataOutputStream,
  FileAlreadyExistsException,
  Path,
  RawLocalFileSystem,
  StreamCapabilities,
  Syncable
}
import org.apache.hadoop.fs.Options.ChecksumOpt
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.util.Progressable
import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.{CkptException, FencedCheckpointFileManager}
import org.apache.spark.sql.ckpt.minor.CancellableFSDataOutputStream

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

  test("an entry of a query that is being stopped is written whole, and its thread stays interrupted") {
    Thread.currentThread().interrupt()
    try write("log/1", "content")
    finally assert(Thread.interrupted())
    assert(Files.readString(folder.resolve("log/1")) == "content")
    assert(names("log") == Set("1"))
  }

  test("a folder whose names cannot be made durable fails its writer, and a new folder is made with its parents") {
    intercept[java.nio.file.NoSuchFileException](Durable.syncFolder(folder.resolve("none")))
    manager.mkdirs(path("log/one/two"))
    assert(Files.isDirectory(folder.resolve("log/one/two")))
  }

  test("an entry is on the disks of the servers before it has its name, where these can be told to write it") {
    def steps(canSync: Boolean): Seq[String] = {
      val done = mutable.Buffer.empty[String]
      val server = new OutputStream with Syncable with StreamCapabilities {
        override def write(byte: Int): Unit = done += "write"
        override def hflush(): Unit = done += "hflush"
        override def hsync(): Unit = done += "hsync"
        override def close(): Unit = done += "close"
        override def hasCapability(capability: String): Boolean = canSync && capability == StreamCapabilities.HSYNC
      }
      val entry = new SyncedFile(new CancellableFSDataOutputStream(new FSDataOutputStream(server, null)) {
        override def cancel(): Unit = done += "cancel"
      })
      entry.write(1)
      entry.close()
      entry.close()
      done.toSeq
    }
    assert(steps(canSync = true) == Seq("write", "hsync", "close"))
    assert(steps(canSync = false) == Seq("write", "close"))
  }

  test("a file system is told to sync each block of an entry before it says that the block is complete") {
    val conf = new Configuration
    conf.set("fs.blocks.impl", classOf[FilesInBlocks].getName)
    conf.set("fs.AbstractFileSystem.blocks.impl", classOf[BlockFlags].getName)
    val entry = new Path(s"blocks:${folder.resolve("log/1")}")
    new FencedCheckpointFileManager(entry.getParent, conf).createAtomic(entry, overwriteIfPossible = false).close()
    assert(names("log") == Set("1"))
    assert(BlockFlags.last.contains(CreateFlag.SYNC_BLOCK))
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

  test("a link, a pipe or a device in the place of a file is refused, and not read") {
    val run = "00000001-0000-0000-0000-000000000000"
    val fence = new Fence(runs.take(run, "app on host"), run, runs)
    val file = folder.resolve("checkpoint/_ckpt/runs/0000000001.run")
    val elsewhere = Files.move(file, folder.resolve("private"))
    def refusal = intercept[CkptException](fence.check()).getMessage
    Files.createSymbolicLink(file, elsewhere)
    assert(refusal.contains("0000000001.run is not read: it is a link"))
    Files.delete(file)
    assert(new ProcessBuilder("mkfifo", file.toString).start().waitFor() == 0)
    assert(refusal.contains("it is a pipe, a socket or a device"))
    Files.delete(file)
    Files.copy(elsewhere, file)
    Files.createSymbolicLink(file.resolveSibling(".0000000001.run.crc"), elsewhere)
    assert(refusal.contains(".crc is not read: it is a link"))
    Files.delete(file.resolveSibling(".0000000001.run.crc"))
    fence.check()
    Files.createSymbolicLink(folder.resolve("linked"), folder.resolve("checkpoint"))
    val linked = new Runs(new Path(s"file:${folder.resolve("linked")}"), new Configuration)
    assert(linked.isOf(1, run), "the folder of a checkpoint may be a link")
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

  test("an entry from which the successor has gone on stays, and one that it deleted long ago is removed again") {
    val (run, successor) = ("00000001-0000-0000-0000-000000000000", "00000002-0000-0000-0000-000000000000")
    for ((later, stays) <- Seq(
        Seq() -> true,
        Seq("8") -> true,
        Seq("8", "9") -> true,
        Seq("8.compact", "9") -> true,
        Seq("9") -> false)) {
      val fence = new Fence(runs.take(run, "app on host"), run, runs)
      fence.check()
      val entry = manager.createFenced(path("log/7"), fence)
      runs.take(successor, "app on host")
      for (name <- later) Files.createFile(folder.resolve(s"log/$name"))
      intercept[CkptException](entry.close())
      assert(names("log").contains("7") == stays, s"after $later")
      for (name <- names("log")) Files.delete(folder.resolve(s"log/$name"))
    }
  }

  private def move(more: String = ""): Unit = {
    val target = folder.resolve("new")
    put("0000000001", s"""{"run_id":"a run","moves_to":"file:$target"$more}""")
  }

  private def lay(checkpoint: String, id: String, planned: Int, committed: Int): Unit = {
    val root = folder.resolve(checkpoint)
    for ((log, entries) <- Seq("offsets" -> planned, "commits" -> committed)) {
      Files.createDirectories(root.resolve(log))
      for (number <- 0 until entries) Files.createFile(root.resolve(s"$log/$number"))
    }
    Files.writeString(root.resolve("metadata"), s"""{"id":"$id"}""")
  }

  private def started(): Long = runs.take("00000002-0000-0000-0000-000000000000", "app on host")
  private def refused(): MovedException = {
    val moved = intercept[MovedException](started())
    assert(runs.list() == Seq(1L), "it has no number")
    assert(moved.epoch == 1)
    moved
  }

  test("a query that was rescaled to another checkpoint is refused on the old one, and told where it is") {
    lay("checkpoint", "its", 2, 2)
    move(""","moved_at_ms":1767225600000""")
    val message = refused().getMessage
    assert(
      message.contains(s"not started on ${folder.resolve("checkpoint")}: it was rescaled to file:${folder}/new at " +
        "2026-01-01T00:00:00Z, and goes on there. Start the program with checkpointLocation file:"))
    val next = Files.createDirectories(folder.resolve("new/_ckpt/runs")).resolve("0000000007.run")
    Files.writeString(next, """{"run_id":"next","moves_to":"s3a://bucket/newest","moved_at_ms":1767225600000}""")
    assert(refused().getMessage.contains("and is now on s3a://bucket/newest. Start the program with " +
        "checkpointLocation s3a://bucket/newest. "))
  }

  test("a query whose rescaling has not ended is started as long as the new checkpoint has nothing new") {
    lay("checkpoint", "its", 2, 2)
    move()
    assert(started() == 2, "there is no new checkpoint")
    for ((id, planned, committed) <- Seq(("its", 2, 2), ("another's", 9, 9))) {
      Files.delete(folder.resolve("checkpoint/_ckpt/runs/0000000002.run"))
      lay(s"new$planned", id, planned, committed)
      put("0000000001", s"""{"run_id":"a run","moves_to":"file:$folder/new$planned"}""")
      assert(started() == 2)
    }
  }

  test(
    "a query whose rescaling has not ended is refused once a batch was begun that the old checkpoint does not have") {
    lay("checkpoint", "its", 2, 2)
    lay("new", "its", 3, 2)
    move()
    assert(refused().getMessage.contains("and the query has begun batch 2, which its sink may have, there."))
    Files.createFile(folder.resolve("checkpoint/offsets/2"))
    assert(started() == 2, "it runs the batch again with the same rows")
    Files.delete(folder.resolve("checkpoint/_ckpt/runs/0000000002.run"))
    Files.createFile(folder.resolve("new/commits/2"))
    assert(refused().getMessage.contains("and the query has committed batch 2 there."))
  }

  test("a query is refused if it cannot be found out whether it goes on elsewhere") {
    lay("checkpoint", "its", 2, 2)
    put("0000000001", """{"run_id":"a run","moves_to":"unknown://place/new"}""")
    val unknown = intercept[CkptException](started())
    assert(unknown.kind == "StorageError")
    assert(unknown.getMessage.contains("cannot be read: org.apache.hadoop.fs.UnsupportedFileSystemException"))
    put("0000000001", "{")
    val damaged = intercept[CkptException](started())
    assert(damaged.kind == "FormatError")
    assert(damaged.getMessage.contains("0000000001.run is damaged: it is not JSON. So it is unknown whether"))
  }

  test("no run follows the last number, and the error names it") {
    put("9999999999", "")
    val refusal = intercept[CkptException](runs.take("00000001-0000-0000-0000-000000000000", "app on host"))
    assert(refusal.kind == "FormatError")
    assert(refusal.getMessage.contains("_ckpt/runs/9999999999.run has the highest number of a run"))
    assert(runs.list() == Seq(9999999999L))
  }
}

private[fence] class FilesInBlocks extends RawLocalFileSystem {
  override def getUri: URI = URI.create("blocks:///")
  override def getScheme: String = "blocks"
}

private[fence] class BlockFlags(uri: URI, conf: Configuration)
  extends DelegateToFileSystem(uri, new FilesInBlocks, conf, "blocks", false) {

  override def createInternal(
      path: Path,
      flags: EnumSet[CreateFlag],
      permission: FsPermission,
      bufferBytes: Int,
      replication: Short,
      blockBytes: Long,
      progress: Progressable,
      checksums: ChecksumOpt,
      withParents: Boolean): FSDataOutputStream = {
    BlockFlags.last = flags
    super.createInternal(
      path, flags, permission, bufferBytes, replication, blockBytes, progress, checksums, withParents)
  }
}

private[fence] object BlockFlags {
  @volatile var last: EnumSet[CreateFlag] = EnumSet.noneOf(classOf[CreateFlag])
}
