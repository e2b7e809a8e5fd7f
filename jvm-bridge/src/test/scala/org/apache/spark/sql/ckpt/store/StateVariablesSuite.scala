package org.apache.spark.sql.ckpt.store

import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import org.scalatest.BeforeAndAfterAll
import org.scalatest.concurrent.Eventually
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import org.apache.spark.sql.{DataFrame, Dataset, Encoder, Encoders, SparkSession}
import org.apache.spark.sql.ckpt.{CkptStateStoreProvider, Stores}
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.ckpt.transactions.SharedRuntime
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.streaming._

/** The state variables of transformWithState through Spark's reader of state, on Spark's provider and on ours. */
class StateVariablesSuite extends AnyFunSuite with BeforeAndAfterAll with Eventually {
  import StateVariablesSuite._

  private var spark: SparkSession = _
  private var folder: Path = _

  override def beforeAll(): Unit = {
    StateStore.stop() // the maintenance of a suite before this one would go on at that suite's interval
    folder = Files.createTempDirectory("state-variables")
    spark = SparkSession.builder()
      .master("local[2]")
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.sql.shuffle.partitions", "2")
      .config("spark.sql.warehouse.dir", folder.resolve("warehouse").toString)
      .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
      .config("spark.sql.streaming.stateStore.maintenanceInterval", "100ms")
      .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
      .config(Settings.Prefix + "memoryLimit", "16m")
      .config(Settings.Prefix + "snapshotEveryVersions", "1")
      .config(Settings.Prefix + "python", sys.env.getOrElse("PYTHON", "python3"))
      .getOrCreate()
  }

  override def afterAll(): Unit = {
    spark.stop()
    SharedRuntime.stop()
    Stores.deleteAll(folder)
  }

  /** Runs some batches, and what `whileActive` asks for before the query is stopped; the checkpoint. */
  private def run(provider: String)(whileActive: Path => Unit): Path = {
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    val session = spark
    import session.implicits._
    val source = MemoryStream[Word](implicitly[Encoder[Word]], spark)
    val checkpoint = Files.createTempDirectory(folder, "checkpoint")
    val query = source.toDS().groupByKey(_.word)
      .transformWithState(new Remember, TimeMode.None(), OutputMode.Update())
      .writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint.toString).start()
    try {
      Batches.foreach { batch =>
        source.addData(batch)
        query.processAllAvailable()
      }
      whileActive(checkpoint)
    } finally {
      query.stop()
    }
    checkpoint
  }

  private def read(checkpoint: Path, variable: String, options: (String, String)*): DataFrame =
    spark.read.format("statestore").option("stateVarName", variable).options(options.toMap).load(checkpoint.toString)

  private def lines(frame: DataFrame): Seq[String] = frame.collect().map(_.toString).sorted.toSeq

  test("the change feed and the replay of value, list and map variables are Spark's") {
    val rocks = run("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")(_ => ())
    var snapshots = Seq.empty[Long]
    val ours = run(classOf[CkptStateStoreProvider].getName) { checkpoint =>
      eventually(timeout(60.seconds), interval(100.millis)) {
        snapshots = snapshotsOf(checkpoint)
        assert(snapshots.nonEmpty)
      }
    }
    Seq("last", "all", "lengths").foreach { variable =>
      val feed = Seq(rocks, ours).map(read(_, variable, "readChangeFeed" -> "true", "changeStartBatchId" -> "0"))
      assert(lines(feed.last) == lines(feed.head) && lines(feed.head).nonEmpty, variable)
      assert(feed.head.select("change_type").distinct().count() > 1)
      val state = read(ours, variable)
      assert(lines(state) == lines(read(rocks, variable)))
      val replayed = read(
        ours, variable, "snapshotStartBatchId" -> (snapshots.head - 1).toString, "snapshotPartitionId" -> "0")
      assert(lines(replayed) == lines(state.where("partition_id = 0")) && lines(replayed).nonEmpty)
    }
  }

  /** What a processor of words puts out, batch by batch, with times as its numbers in seconds. */
  private def outputs(provider: String, processor: StatefulProcessor[String, Word, String]): Seq[String] = {
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    val session = spark
    import session.implicits._
    val source = MemoryStream[Word](implicitly[Encoder[Word]], spark)
    val checkpoint = Files.createTempDirectory(folder, "checkpoint")
    val found = scala.collection.mutable.ArrayBuffer.empty[String]
    val collect: (Dataset[String], Long) => Unit = (batch, _) => {
      found += batch.collect().sorted.mkString(" ")
      ()
    }
    val query = source.toDS().withColumn("at", $"number".cast("timestamp")).withWatermark("at", "0 seconds").as[Word]
      .groupByKey(_.word).transformWithState(processor, TimeMode.EventTime(), OutputMode.Append())
      .writeStream.foreachBatch(collect).outputMode("append").option("checkpointLocation", checkpoint.toString).start()
    try {
      Seq(1L, 2L, 5L, 20L, 40L, 41L, 80L).foreach { number =>
        source.addData((0 until 5).map(i => Word(s"word-$i", number + i % 2)))
        query.processAllAvailable()
      }
    } finally {
      query.stop()
    }
    found.toSeq
  }

  for ((name, processor) <- Seq(
      "a map variable that is written while it is read" -> (() => new Rewrite),
      "timers that are set and removed while timers fire" -> (() => new Reschedule))) {
    test(s"$name gives what it gives on Spark's own store") {
      val expected = outputs("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider", processor())
      assert(expected.exists(_.nonEmpty))
      assert(outputs(classOf[CkptStateStoreProvider].getName, processor()) == expected)
    }
  }

  /** Versions of which partition 0 has a snapshot. */
  private def snapshotsOf(checkpoint: Path): Seq[Long] = {
    val files = Files.list(checkpoint.resolve("state").resolve("0").resolve("0"))
    try files.iterator.asScala.map(_.getFileName.toString).filter(_.endsWith(".snapshot")).map(_.take(20).toLong).toSeq
    finally files.close()
  }
}

case class Word(word: String, number: Long)

/** The last number of a word, all of them, and how many there were of each last digit. */
class Remember extends StatefulProcessor[String, Word, String] {
  @transient private var last: ValueState[Long] = _
  @transient private var all: ListState[Long] = _
  @transient private var lengths: MapState[Long, Long] = _

  override def init(mode: OutputMode, time: TimeMode): Unit = {
    last = getHandle.getValueState[Long]("last", Encoders.scalaLong, TTLConfig.NONE)
    all = getHandle.getListState[Long]("all", Encoders.scalaLong, TTLConfig.NONE)
    lengths = getHandle.getMapState[Long, Long]("lengths", Encoders.scalaLong, Encoders.scalaLong, TTLConfig.NONE)
  }

  /** Writes every state once, as the feed of ours shows one outcome a batch. */
  override def handleInputRows(word: String, rows: Iterator[Word], timers: TimerValues): Iterator[String] = {
    val numbers = rows.map(_.number).toArray.sorted
    numbers.last % 5 match {
      case 0 =>
        if (last.exists()) last.clear()
        if (all.exists()) all.clear()
        lengths.keys().toArray.foreach(lengths.removeKey)
      case 1 if all.exists() =>
        last.update(numbers.last)
        all.put(numbers)
      case _ =>
        last.update(numbers.last)
        all.appendList(numbers)
        numbers.groupBy(_ % 10).foreach { case (digit, some) => lengths.updateValue(digit, some.length.toLong) }
    }
    Iterator(word)
  }
}

/** Changes all entries of a map, removes some and adds others, while it reads them. */
class Rewrite extends StatefulProcessor[String, Word, String] {
  @transient private var entries: MapState[Long, Long] = _

  override def init(mode: OutputMode, time: TimeMode): Unit =
    entries = getHandle.getMapState[Long, Long]("entries", Encoders.scalaLong, Encoders.scalaLong, TTLConfig.NONE)

  override def handleInputRows(word: String, rows: Iterator[Word], timers: TimerValues): Iterator[String] = {
    val first = rows.map(_.number).sum
    (1L to 5L).foreach(i => entries.updateValue(first + i, 10 * i))
    val seen = entries.iterator().map { case (number, value) =>
      entries.iterator().map(_._1).filter(_ > number).toSeq.headOption.foreach(entries.removeKey)
      (number - 3 to number + 3).foreach(entries.updateValue(_, value + 1))
      s"$number=$value"
    }
    Iterator(s"$word: ${seen.toSeq.mkString(",")}")
  }
}

/** Sets timers, and moves some of them while others fire. */
class Reschedule extends StatefulProcessor[String, Word, String] {
  override def init(mode: OutputMode, time: TimeMode): Unit = ()

  override def handleInputRows(word: String, rows: Iterator[Word], timers: TimerValues): Iterator[String] = {
    val last = rows.map(_.number).max * 1000
    Seq(3000L, 4000L, 30000L).foreach(wait => getHandle.registerTimer(last + wait))
    Iterator.empty
  }

  override def handleExpiredTimer(word: String, timers: TimerValues, fired: ExpiredTimerInfo): Iterator[String] = {
    val at = fired.getExpiryTimeInMs()
    getHandle.listTimers().toSeq.filter(_ > at).foreach { other =>
      getHandle.deleteTimer(other)
      getHandle.registerTimer(other)
    }
    if (at % 2000 == 0) getHandle.registerTimer(at + 1)
    Iterator(s"$word:$at")
  }
}

object StateVariablesSuite {
  private val Batches: Seq[Seq[Word]] = (0 until 5).map { batch =>
    (0 until 30).map(i => Word(s"word-${i % 8}", (batch * 31L + i * 7) % 97))
  }
}
