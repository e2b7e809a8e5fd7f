package org.apache.spark.sql.ckpt.store

import java.nio.file.{Files, Path}
import java.sql.Timestamp

import scala.collection.mutable

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.{DataFrame, Dataset, Row, SparkSession}
import org.apache.spark.sql.ckpt.{CkptStateStoreProvider, Stores}
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.ckpt.transactions.SharedRuntime
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

/** The operators that only Scala and Java programs can write, on Spark's provider and on ours, row for row. */
class GroupStateSuite extends AnyFunSuite with BeforeAndAfterAll {
  private var spark: SparkSession = _
  private var folder: Path = _

  override def beforeAll(): Unit = {
    folder = Files.createTempDirectory("group-state")
    startSession()
  }

  private def startSession(): Unit =
    spark = SparkSession.builder()
      .master("local[2]")
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.sql.shuffle.partitions", "3")
      .config("spark.sql.warehouse.dir", folder.resolve("warehouse").toString)
      .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
      .config(Settings.Prefix + "memoryLimit", "16m")
      .config(Settings.Prefix + "python", sys.env.getOrElse("PYTHON", "python3"))
      .getOrCreate()

  override def afterAll(): Unit = {
    spark.stop()
    SharedRuntime.stop()
    Stores.deleteAll(folder)
  }

  /** The rows of each batch, sorted; the query is stopped and started again in the middle. */
  private def run(provider: String, mode: OutputMode, batches: Seq[Seq[Event]])(
      operator: Dataset[Event] => DataFrame): Seq[Seq[String]] = {
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    val session = spark
    import session.implicits._
    val source = MemoryStream[Event](implicitly[org.apache.spark.sql.Encoder[Event]], spark)
    val checkpoint = Files.createTempDirectory(folder, "checkpoint").toString
    val seen = mutable.ArrayBuffer.empty[Seq[String]]
    val collect: (Dataset[Row], Long) => Unit = (rows, _) => seen += rows.collect().map(_.toString).sorted.toSeq
    batches.grouped(2).foreach { some =>
      val query = operator(source.toDS()).writeStream
        .foreachBatch(collect)
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .start()
      some.foreach { batch =>
        source.addData(batch)
        query.processAllAvailable()
      }
      query.stop()
    }
    seen.toSeq
  }

  private def same(mode: OutputMode, batches: Seq[Seq[Event]])(operator: Dataset[Event] => DataFrame): Unit = {
    val rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    val expected = run(rocks, mode, batches)(operator)
    assert(expected.exists(_.nonEmpty))
    assert(run(classOf[CkptStateStoreProvider].getName, mode, batches)(operator) == expected)
  }

  private val batches: Seq[Seq[Event]] = (0 until 6).map { batch =>
    (0 until 40).map(i => Event(s"user-${(i * 7 + batch) % 13}", batch * 100L + i, new Timestamp(batch * 60000L + i)))
  }

  test("mapGroupsWithState keeps its state") {
    same(OutputMode.Update, batches) { events =>
      val session = spark
      import session.implicits._
      events.groupByKey(_.user).mapGroupsWithState(GroupStateTimeout.NoTimeout)(GroupStateSuite.total).toDF()
    }
  }

  test("flatMapGroupsWithState keeps its state and fires its time-outs in event time") {
    same(OutputMode.Append, batches) { events =>
      val session = spark
      import session.implicits._
      events.withWatermark("at", "30 seconds").groupByKey(_.user)
        .flatMapGroupsWithState(OutputMode.Append, GroupStateTimeout.EventTimeTimeout)(GroupStateSuite.sessions).toDF()
    }
  }

  test("flatMapGroupsWithState removes state") {
    same(OutputMode.Update, batches) { events =>
      val session = spark
      import session.implicits._
      events.groupByKey(_.user)
        .flatMapGroupsWithState(OutputMode.Update, GroupStateTimeout.NoTimeout)(GroupStateSuite.everyThird).toDF()
    }
  }

  test("a second session of the same JVM has a state server of its own") {
    spark.stop()
    assert(!ProcessHandle.current.children.anyMatch(_.info.commandLine.orElse("").contains("pyspark_ckpt.state_store")))
    startSession()
    same(OutputMode.Update, batches.take(2)) { events =>
      val session = spark
      import session.implicits._
      events.groupByKey(_.user).mapGroupsWithState(GroupStateTimeout.NoTimeout)(GroupStateSuite.total).toDF()
    }
  }
}

case class Event(user: String, amount: Long, at: Timestamp)

object GroupStateSuite {

  def total(user: String, events: Iterator[Event], state: GroupState[Long]): (String, Long) = {
    val sum = state.getOption.getOrElse(0L) + events.map(_.amount).sum
    state.update(sum)
    (user, sum)
  }

  def sessions(user: String, events: Iterator[Event], state: GroupState[Long]): Iterator[(String, Long, Boolean)] =
    if (state.hasTimedOut) {
      val count = state.get
      state.remove()
      Iterator((user, count, true))
    } else {
      val all = events.toSeq
      state.update(state.getOption.getOrElse(0L) + all.size)
      state.setTimeoutTimestamp(all.map(_.at.getTime).max + 45000)
      Iterator((user, state.get, false))
    }

  def everyThird(user: String, events: Iterator[Event], state: GroupState[Long]): Iterator[(String, Long)] = {
    val count = state.getOption.getOrElse(0L) + events.size
    if (count % 3 == 0) state.remove() else state.update(count)
    Iterator((user, count))
  }
}
