package org.apache.spark.sql.ckpt

import java.io.RandomAccessFile
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.{CountDownLatch, CyclicBarrier}
import java.util.concurrent.atomic.AtomicReference

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import org.apache.spark.TaskContext
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.{Metrics, Settings}
import org.apache.spark.sql.ckpt.transactions.SharedRuntime
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf

/** What a store goes through: restores, spills, damage, maintenance, and its end. */
class ProviderLifeSuite extends ProviderLifeTests("rocksdb")

class MemoryProviderLifeSuite extends ProviderLifeTests("memory")

abstract class ProviderLifeTests(backend: String) extends ProviderTests(backend) {
  test("restores every retained version from the remote files alone") {
    start()
    var at: (Long, Option[String]) = (0L, None)
    val versions = (1 to 15).map { i =>
      at = transaction(at._1, at._2)(store => store.put(key("k", i), value(i)))
      at
    }
    provider.close()
    versions.foreach { case (version, id) =>
      start()
      val store = provider.getReadStore(version, id)
      assert(pairs(store.iterator()).map(_._2).sorted == (1L to version).toList)
      store.release()
      provider.close()
    }
  }

  test("spills when the memory limit is small and loses nothing") {
    start()
    val wide = "x" * 500
    def wideKey(i: Int) = key(wide.take(i % 500), i)
    val first = provider.getStore(0, None)
    (1 to 50000).foreach(i => first.put(wideKey(i), value(i)))
    (1 to 50000 by 3).foreach(i => first.remove(wideKey(i)))
    (2 to 50000 by 3).foreach(i => assert(first.get(wideKey(i)).getLong(0) == i))
    assert(first.iterator().size == 33333)
    first.commit()
    val metrics = first.metrics
    assert(metrics.customMetrics(Metrics("ckptSpilledRuns")) >= 2 && metrics.numKeys == 33333)
    val store = provider.getReadStore(1, first.getStateStoreCheckpointInfo().stateStoreCkptId)
    assert(store.iterator().size == 33333)
    (1 to 50000 by 3).foreach(i => assert(store.get(wideKey(i)) == null))
    store.release()
  }

  test("goes on after the state server was killed") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    ProcessHandle.current.children.iterator.asScala
      .filter(_.info.commandLine.orElse("").contains("pyspark_ckpt.state_store"))
      .foreach { server =>
        server.destroyForcibly()
        server.onExit.get
      }
    transaction(one, first)(store => assert(store.get(key("a", 1)).getLong(0) == 1))
  }

  /** As Spark does: a task that failed is tried again, four times in all. Returns the attempts it took. */
  private def attempts(version: Long, id: Option[String])(work: StateStore => Unit): Int = {
    def attempt(number: Int): Int = {
      val store = provider.getStore(version, id)
      val outcome = Try(work(store))
      store.abort()
      outcome match {
        case Success(_) => number
        case Failure(failure) if number == 4 => throw failure
        case Failure(_) => attempt(number + 1)
      }
    }
    attempt(1)
  }

  private def tables(database: Path): Seq[Path] =
    Files.list(database).iterator.asScala.filter(_.toString.endsWith(".sst")).toSeq

  /** Changes one bit in the middle of each table file. */
  private def flip(database: Path): Unit = tables(database).foreach { table =>
    val file = new RandomAccessFile(table.toFile, "rw")
    file.seek(file.length / 2)
    val byte = file.read()
    file.seek(file.length / 2)
    file.write(byte ^ 4)
    file.close()
  }

  private val damages = Seq[(String, Path => Unit)](
    "a bit of each table file has changed" -> flip,
    "table files are cut" -> (database => tables(database).foreach(Files.write(_, Array[Byte](1, 2, 3)))),
    "table files are gone" -> (database => tables(database).foreach(Files.delete)),
    "CURRENT is gone" -> (database => Files.delete(database.resolve("CURRENT"))),
    "the database is gone" -> (database => LocalFolder.deleteAll(database)),
    "the server's folder is gone" -> (database => LocalFolder.deleteAll(parent(database, 4))),
    "the whole local folder is gone" -> (database => LocalFolder.deleteAll(parent(database, 5))))

  private def parent(path: Path, times: Int): Path = if (times == 0) path else parent(path.getParent, times - 1)

  damages.foreach { case (what, spoil) =>
    for (isLive <- Seq(true, false)) {
      test(s"an attempt gets what was committed from the remote place when $what (live: $isLive)") {
        start()
        val rows = 20000
        val (one, first) = transaction(0, None) { store =>
          (1 to rows).foreach(i => store.put(key(s"name $i", i * 7919L), value(i * 104729L)))
        }
        val (two, second) = transaction(one, first)(_.put(key("other", 1), value(1)))
        val (version, id, count) = if (isLive) (two, second, rows + 1) else (one, first, rows)
        val holder = if (isLive) None else Some(provider.getReadStore(two, second))
        val before = provider.begin(version, id)
        assert(before.begun.live == isLive)
        spoil(Paths.get(before.begun.path))
        provider.transactions.end(before)
        attempts(version, id)(store => assert(pairs(store.iterator()).size == count))
        attempts(version, id) { store =>
          (1 to rows by 97).foreach(i => assert(store.get(key(s"name $i", i * 7919L)).getLong(0) == i * 104729L))
        }
        holder.foreach(_.release())
        provider.doMaintenance()
        val (_, last) = transaction(two, second)(_.put(key("last", 1), value(1)))
        provider.close()
        start()
        val store = provider.getReadStore(two + 1, last)
        assert(pairs(store.iterator()).size == rows + 2)
        store.release()
      }
    }
  }

  test("a failed maintenance leaves the store in use") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val state = folder.resolve("state").resolve("0").resolve("0")
    val away = folder.resolve("away")
    Files.move(state, away)
    Files.createFile(state) // a file where the store's folder was: every remote request fails
    provider.doMaintenance()
    Files.delete(state)
    Files.move(away, state)
    transaction(one, first)(store => assert(store.get(key("a", 1)).getLong(0) == 1))
  }

  test("a store that is closed under a task ends after the task") {
    val closed = start()
    val task = TaskContext.empty()
    TaskContext.setTaskContext(task)
    try {
      val store = provider.getStore(0, None)
      val reading = closed.begin(0, None)
      val local = Paths.get(reading.begun.path)
      closed.transactions.end(reading)
      store.put(key("a", 1), value(1))
      val closing = new Thread(() => provider.close())
      closing.start()
      closing.join()
      intercept[CkptException](closed.getStore(0, None))
      store.put(key("b", 2), value(2))
      assert(store.commit() == 1)
      val id = store.getStateStoreCheckpointInfo().stateStoreCkptId
      assert(Files.exists(local))
      task.markTaskCompleted(None)
      eventually(assert(!Files.exists(local)))
      TaskContext.unset()
      start()
      transaction(1, id)(next => assert(next.get(key("b", 2)).getLong(0) == 2))
    } finally {
      TaskContext.unset()
    }
  }

  test("a store is closed without waiting for a thread that opens it") {
    start()
    val (opening, mayEnd) = (new CountDownLatch(1), new CountDownLatch(1))
    val opener = new Thread(() =>
      provider.served.synchronized { // as it does while a state server starts, or while a place does not answer
        opening.countDown()
        mayEnd.await()
      })
    opener.start()
    opening.await()
    val closer = new Thread(() => provider.served.stopOpening())
    closer.start()
    try eventually(assert(!closer.isAlive && !provider.served.isOpen))
    finally mayEnd.countDown()
    opener.join()
    intercept[CkptException](provider.getStore(0, None))
  }

  test("a snapshot that is asked for while another one is made is made by the next maintenance") {
    SharedRuntime.stop() // of a process without this fail point
    val conf = Map(
      Settings.Prefix + "snapshotEveryVersions" -> "2",
      Settings.Prefix + "failPoints" -> "snapshot.before_manifest:hold")
    def made(version: Long): Boolean = Files.list(folder.resolve("state").resolve("0").resolve("0")).iterator.asScala
      .map(_.getFileName.toString).exists(name => name.startsWith(f"$version%020d") && name.endsWith(".snapshot"))
    start(conf = conf)
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val (two, second) = transaction(one, first)(_.put(key("a", 1), value(2)))
    provider.close()
    start(conf = conf)
    val store = provider.getStore(two, second)
    val reading = provider.begin(two, second)
    val held = Paths.get(reading.begun.staging.toString).getParent.getParent.resolve("failpoints")
      .resolve("snapshot.before_manifest-hold")
    provider.transactions.end(reading)
    eventually(assert(Files.exists(held)))
    provider.getStore(two, second, forceSnapshotOnCommit = true, loadEmpty = false).abort()
    store.put(key("a", 1), value(3))
    store.commit()
    val third = store.getStateStoreCheckpointInfo().stateStoreCkptId
    Files.delete(held)
    val bothThreads = new CyclicBarrier(3) // of maintenance: they have ended their rounds when they meet here
    (1 to 2).foreach(_ => provider.served.runtime.maintain(() => bothThreads.await()))
    bothThreads.await()
    assert(made(2) && !made(3))
    provider.transactions.end(provider.begin(3, third))
    provider.doSnapshotMaintenance()
    assert(made(3))
    SharedRuntime.stop()
  }

  test("a first maintenance that fails ends no thread") {
    val uncaught = new AtomicReference[Throwable]
    val before = Thread.getDefaultUncaughtExceptionHandler
    Thread.setDefaultUncaughtExceptionHandler((_, failure) => uncaught.set(failure))
    try {
      val conf = Map(
        Settings.Prefix + "snapshotEveryVersions" -> "1",
        SQLConf.STATE_STORE_COORDINATOR_REPORT_SNAPSHOT_UPLOAD_LAG.key -> "true")
      start(conf = conf)
      val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
      provider.close()
      start(conf = conf)
      provider.served.hadoopConf.set(StreamExecution.RUN_ID_KEY, "no id") // a snapshot cannot be reported
      transaction(one, first)(_.put(key("a", 2), value(2)))
      val place = folder.resolve("state").resolve("0").resolve("0")
      eventually(assert(Files.list(place).iterator.asScala.exists(_.toString.endsWith(".snapshot"))))
      Thread.sleep(500) // it is reported right after that
      assert(uncaught.get == null)
    } finally Thread.setDefaultUncaughtExceptionHandler(before)
  }

  test("a run that ends before Spark's first maintenance makes its snapshots and cleans up") {
    val conf = Map(
      Settings.Prefix + "snapshotEveryVersions" -> "2",
      Settings.Prefix + "retentionGracePeriod" -> "0",
      SQLConf.MIN_BATCHES_TO_RETAIN.key -> "1")
    def versions(suffix: String): Set[Long] =
      Files.list(folder.resolve("state").resolve("0").resolve("0")).iterator.asScala
        .map(_.getFileName.toString).filter(_.endsWith(suffix)).map(_.take(20).toLong).toSet
    var at: (Long, Option[String]) = (0L, None)
    (1 to 5).foreach { run =>
      start(conf = conf)
      at = transaction(at._1, at._2)(_.put(key("k", run), value(run)))
      if (run > 2 && run % 2 == 1) eventually(assert(versions(".snapshot").contains(run - 1)))
      if (run == 5) eventually(assert(!versions(".delta").contains(1)))
      provider.close()
    }
    assert(versions(".delta").contains(5))
  }

  test("keeps no connection for threads that are gone") {
    start()
    def sockets = Files.list(java.nio.file.Paths.get("/proc/self/fd")).iterator.asScala
      .count(fd => scala.util.Try(Files.readSymbolicLink(fd).toString.startsWith("socket")).getOrElse(false))
    var at: (Long, Option[String]) = (0L, None)
    val counts = (1 to 60).map { i =>
      val thread = new Thread(() => at = transaction(at._1, at._2)(_.put(key("k", i), value(i))))
      thread.start()
      thread.join()
      sockets
    }
    assert(at._1 == 60 && counts.last <= counts(39), counts)
  }

  test("refuses an unknown option and a bad value by name") {
    val unknown = intercept[CkptException](start(conf = Map(Settings.Prefix + "memmoryLimit" -> "1g")))
    assert(unknown.getMessage.contains(s"no option ${Settings.Prefix}memmoryLimit. Did you mean 'memoryLimit'?"))
    val other = intercept[CkptException](start(conf = Map(Settings.Prefix + "banana" -> "1g")))
    assert(other.getMessage.contains("banana. Known options: ") && !other.getMessage.contains("Did you mean"))
    val bad = intercept[CkptException](start(conf = Map(Settings.Prefix + "memoryLimit" -> "a lot")))
    assert(bad.getMessage.contains("memoryLimit") && bad.getMessage.contains("a lot"))
    provider = null
  }

  test("names a version that was never committed") {
    start()
    val failure = intercept[CkptException](provider.getStore(7, Some("0123456789abcdef0123456789abcdef")))
    assert(failure.getMessage.contains("7"))
  }
}
