package org.apache.spark.sql.ckpt

import java.io.RandomAccessFile
import java.nio.file.{Files, Path, Paths}
import java.util.UUID
import java.util.concurrent.atomic.AtomicReference

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import org.scalatest.{BeforeAndAfterAll, BeforeAndAfterEach}
import org.scalatest.concurrent.Eventually
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.{Seconds, Span}

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.ckpt.server.{Settings, SharedRuntime}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** The provider by itself, with a real state server and real files, no Spark job: every method of the trait. */
class ProviderSuite extends ProviderTests("rocksdb")

class MemoryProviderSuite extends ProviderTests("memory")

abstract class ProviderTests(backend: String) extends AnyFunSuite with BeforeAndAfterEach with BeforeAndAfterAll
  with Eventually {
  override implicit val patienceConfig: PatienceConfig = PatienceConfig(timeout = Span(20, Seconds))

  private var folder: Path = _
  private var provider: CkptStateStoreProvider = _

  private val keySchema = new StructType().add("name", StringType).add("number", LongType)
  private val valueSchema = new StructType().add("value", LongType)
  private val noPrefix = NoPrefixKeyStateEncoderSpec(keySchema)

  override def beforeEach(): Unit = folder = Files.createTempDirectory("provider")

  override def afterEach(): Unit = {
    if (provider != null) provider.close()
    provider = null
    Readers.deleteFolder(folder)
  }

  override def afterAll(): Unit = SharedRuntime.stop()

  private def start(
      encoder: KeyStateEncoderSpec = noPrefix,
      families: Boolean = false,
      multiple: Boolean = false,
      conf: Map[String, String] = Map.empty,
      ofReader: Option[String] = None): CkptStateStoreProvider = {
    val sqlConf = new SQLConf
    sqlConf.setConfString("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    sqlConf.setConfString(Settings.Prefix + "python", sys.env.getOrElse("PYTHON", "python3"))
    sqlConf.setConfString(Settings.Prefix + "memoryLimit", "16m") // the process's; it makes large write sets spill
    sqlConf.setConfString(Settings.Prefix + "backend", backend)
    conf.foreach { case (key, value) => sqlConf.setConfString(key, value) }
    val hadoop = Stores.ofRun(UUID.randomUUID().toString)
    ofReader.foreach(hadoop.set(StreamExecution.RUN_ID_KEY, _)) // what Spark makes up for a reader
    val made = new CkptStateStoreProvider
    made.init(
      StateStoreId(folder.resolve("state").toString, 0, 0, StateStoreId.DEFAULT_STORE_NAME), encoder.keySchema,
      valueSchema, encoder, families, new StateStoreConf(sqlConf, Map.empty), hadoop, multiple, None)
    provider = made
    made
  }

  private val projections = scala.collection.mutable.HashMap.empty[StructType, UnsafeProjection]

  private def row(schema: StructType, values: Any*): UnsafeRow = {
    val fields = values.map {
      case text: String => UTF8String.fromString(text)
      case other => other
    }
    projections.getOrElseUpdate(schema, UnsafeProjection.create(schema))(InternalRow.fromSeq(fields)).copy()
  }

  private def key(name: String, number: Long): UnsafeRow = row(keySchema, name, number)
  private def value(number: Long): UnsafeRow = row(valueSchema, number)

  private def pairs(rows: StateStoreIterator[UnsafeRowPair]): Seq[(String, Long, Long)] =
    try rows.map(pair => (pair.key.getString(0), pair.key.getLong(1), pair.value.getLong(0))).toList
    finally rows.close()

  /** Runs one transaction and returns the id of the version it made. */
  private def transaction(version: Long, id: Option[String])(work: StateStore => Unit): (Long, Option[String]) = {
    val store = provider.getStore(version, id)
    work(store)
    val made = store.commit()
    assert(made == version + 1 && store.hasCommitted)
    val info = store.getStateStoreCheckpointInfo()
    assert(info.batchVersion == made && info.baseStateStoreCkptId == id)
    (made, info.stateStoreCkptId)
  }

  test("reads its own writes, and the next version reads what was committed") {
    start()
    val (one, first) = transaction(0, None) { store =>
      assert(store.get(key("a", 1)) == null)
      store.put(key("a", 1), value(10))
      store.put(key("b", 2), value(20))
      assert(store.get(key("a", 1)).getLong(0) == 10)
      store.remove(key("b", 2))
      assert(store.get(key("b", 2)) == null)
      assert(pairs(store.iterator()) == Seq(("a", 1, 10)))
    }
    transaction(one, first) { store =>
      assert(store.get(key("a", 1)).getLong(0) == 10)
      assert(store.get(key("b", 2)) == null)
      store.put(key("a", 1), value(11))
      store.put(key("c", 3), value(30))
      assert(pairs(store.iterator()).toSet == Set(("a", 1, 11), ("c", 3, 30)))
    }
  }

  test("counts rows exactly, whatever was read or not before a write") {
    start()
    val (one, first) = transaction(0, None)(store => (1 to 100).foreach(i => store.put(key("k", i), value(i))))
    val store = provider.getStore(one, first)
    (1 to 10).foreach(i => store.remove(key("k", i))) // present, not read before
    (101 to 120).foreach(i => store.remove(key("k", i))) // absent
    (50 to 60).foreach(i => store.put(key("k", i), value(0))) // replaced
    store.put(key("k", 200), value(0)) // new
    store.put(key("k", 201), value(0))
    store.remove(key("k", 201)) // new and gone again
    store.commit()
    assert(store.metrics.numKeys == 100 - 10 + 1)
  }

  test("an aborted transaction leaves no trace, and one on the same base goes on") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val lost = provider.getStore(one, first)
    lost.put(key("a", 1), value(99))
    lost.abort()
    transaction(one, first)(store => assert(store.get(key("a", 1)).getLong(0) == 1))
  }

  test("two attempts on one base do not wait for each other and each makes a version of its own") {
    start()
    val (one, base) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val (left, right) = (provider.getStore(one, base), provider.getStore(one, base))
    left.put(key("a", 1), value(2))
    right.put(key("a", 1), value(3))
    right.commit()
    assert(left.get(key("b", 1)) == null)
    left.commit()
    val (leftId, rightId) =
      (left.getStateStoreCheckpointInfo().stateStoreCkptId, right.getStateStoreCheckpointInfo().stateStoreCkptId)
    assert(leftId != rightId)
    transaction(2, leftId)(store => assert(store.get(key("a", 1)).getLong(0) == 2))
    transaction(2, rightId)(store => assert(store.get(key("a", 1)).getLong(0) == 3))
  }

  test("a read store becomes the write store of the same transaction") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val reading = provider.getReadStore(one, first)
    assert(reading.get(key("a", 1)).getLong(0) == 1)
    val writing = provider.upgradeReadStoreToWriteStore(reading, one, first)
    reading.release()
    writing.put(key("a", 1), value(2))
    assert(writing.commit() == 2)
  }

  test("a store opened for reading refuses writes by name") {
    start()
    val reading = provider.getReadStore(0, None).asInstanceOf[StateStore]
    val failure = intercept[CkptException](reading.put(key("a", 1), value(1)))
    assert(failure.kind == "LifecycleError" && failure.getMessage.contains("opened for reading"))
    reading.release()
  }

  test("a reader of state commits nothing, also in the session of a query") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val run = UUID.randomUUID().toString
    provider.close()
    start(ofReader = Some(run))
    assert(provider.served.run.isEmpty)
    val reading = provider.getStore(one, first) // as Spark's reader of transformWithState does
    assert(reading.get(key("a", 1)).getLong(0) == 1)
    reading.put(key("a", 1), value(2))
    val failure = intercept[CkptException](reading.commit())
    assert(failure.kind == "LifecycleError" && failure.getMessage.contains("belongs to no run of a query"))
  }

  test("scans the keys of one prefix, written and stored, in any number of transactions") {
    start(PrefixKeyScanStateEncoderSpec(keySchema, 1))
    val (one, first) = transaction(0, None) { store =>
      for (name <- Seq("a", "b", "c"); i <- 1 to 50) store.put(key(name, i), value(i))
    }
    transaction(one, first) { store =>
      store.remove(key("b", 7))
      store.put(key("b", 51), value(51))
      store.put(key("b", 8), value(80))
      val prefix = row(new StructType().add("name", StringType), "b")
      val seen = pairs(store.prefixScan(prefix))
      assert(seen.map(_._1).toSet == Set("b"))
      assert(seen.map(_._2).sorted == (1 to 51).filter(_ != 7).map(_.toLong))
      assert(seen.find(_._2 == 8).get._3 == 80)
      assert(pairs(store.prefixScan(row(new StructType().add("name", StringType), "zz"))).isEmpty)
    }
  }

  test("scans a range in key order, negative numbers first, bounds as Spark means them") {
    val schema = new StructType().add("number", LongType).add("name", StringType)
    start(RangeKeyScanStateEncoderSpec(schema, Seq(0)))
    def k(number: Long) = row(schema, number, s"n$number")
    def numbers(rows: StateStoreIterator[UnsafeRowPair]) = rows.map(_.key.getLong(0)).toList
    val (one, first) = transaction(0, None)(store => (-20L to 20L).foreach(i => store.put(k(i), value(i))))
    transaction(one, first) { store =>
      store.put(k(100), value(100))
      store.remove(k(0))
      val expected = ((-20L to -1L) ++ (1L to 20L) :+ 100L).toList
      assert(numbers(store.iterator()) == expected)
      assert(numbers(store.rangeScan(Some(k(-3)), Some(k(4)))) == List(-3L, -2L, -1L, 1L, 2L, 3L))
      assert(numbers(store.rangeScan(None, Some(k(-18)))) == List(-20L, -19L))
      assert(numbers(store.rangeScan(Some(k(19)), None)) == List(19L, 20L, 100L))
      assert(numbers(store.rangeScan(Some(k(19)), Some(k(3)))) == Nil, "as for Spark's own store")
      assert(numbers(store.rangeScan(Some(k(19)), Some(k(19)))) == Nil)
      store.deleteRange(k(-100), k(19))
      assert(numbers(store.iterator()) == List(19L, 20L, 100L))
    }
  }

  test("holds several values of a key in the order in which they came") {
    start(families = true, multiple = true)
    val (one, first) = transaction(0, None) { store =>
      store.merge(key("a", 1), value(1))
      store.mergeList(key("a", 1), Array(value(2), value(3)))
      store.putList(key("b", 1), Array(value(9)))
    }
    transaction(one, first) { store =>
      store.merge(key("a", 1), value(4))
      assert(store.valuesIterator(key("a", 1)).map(_.getLong(0)).toList == List(1L, 2L, 3L, 4L))
      assert(store.valuesIterator(key("none", 1)).isEmpty)
      assert(pairs(store.iteratorWithMultiValues()).map(_._3).sorted == Seq(1L, 2L, 3L, 4L, 9L))
      store.putList(key("a", 1), Array(value(7)))
      assert(store.valuesIterator(key("a", 1)).map(_.getLong(0)).toList == List(7L))
    }
  }

  test("keeps column families apart, removes one whole, and finds them again after a reload") {
    start(families = true)
    val (one, first) = transaction(0, None) { store =>
      store.createColFamilyIfAbsent("left", keySchema, valueSchema, noPrefix)
      store.createColFamilyIfAbsent("right", keySchema, valueSchema, noPrefix)
      store.put(key("a", 1), value(1), "left")
      store.put(key("a", 1), value(2), "right")
    }
    provider.close()
    start(families = true)
    val (two, second) = transaction(one, first) { store =>
      store.createColFamilyIfAbsent("left", keySchema, valueSchema, noPrefix)
      store.createColFamilyIfAbsent("right", keySchema, valueSchema, noPrefix)
      assert(store.get(key("a", 1), "left").getLong(0) == 1)
      assert(store.get(key("a", 1), "right").getLong(0) == 2)
      assert(store.removeColFamilyIfExists("left"))
      assert(!store.removeColFamilyIfExists("left"))
      assert(store.allColumnFamilyNames == Set("default", "right"))
    }
    transaction(two, second) { store =>
      store.createColFamilyIfAbsent("left", keySchema, valueSchema, noPrefix)
      assert(store.get(key("a", 1), "left") == null)
      assert(store.get(key("a", 1), "right").getLong(0) == 2)
    }
    val failure = intercept[Exception](transaction(3, None)(_.get(key("a", 1), "nowhere")))
    assert(failure.getMessage.contains("nowhere") || failure.getMessage.contains("3"))
  }

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
    "the database is gone" -> (database => Readers.deleteFolder(database)),
    "the server's folder is gone" -> (database => Readers.deleteFolder(parent(database, 4))),
    "the whole local folder is gone" -> (database => Readers.deleteFolder(parent(database, 5))))

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
