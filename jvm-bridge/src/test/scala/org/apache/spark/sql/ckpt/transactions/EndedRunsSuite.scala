package org.apache.spark.sql.ckpt.transactions

import java.nio.file.{Files, Path}

import scala.collection.mutable

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.streaming.StreamingQuery

/** Queries in one session that follow one another at once, before Spark closes the stores of those that have ended.
  * They share 8 MiB, and each has more than a half of that.
  */
class EndedRunsSuite extends AnyFunSuite with BeforeAndAfterAll {
  private var spark: SparkSession = _
  private var folder: Path = _
  private val sources = mutable.HashMap.empty[String, MemoryStream[Int]]

  override def beforeAll(): Unit = {
    SharedRuntime.stop()
    folder = Files.createTempDirectory("ended-runs")
    spark = SparkSession.builder()
      .master("local[2]")
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.sql.shuffle.partitions", "2")
      .config("spark.sql.warehouse.dir", folder.resolve("warehouse").toString)
      .config("spark.sql.streaming.stateStore.maintenanceInterval", "1h")
      .config("spark.sql.streaming.stateStore.providerClass", classOf[CkptStateStoreProvider].getName)
      .config(Settings.Prefix + "backend", "memory")
      .config(Settings.Prefix + "memoryLimit", "16m")
      .config(Settings.Prefix + "python", sys.env.getOrElse("PYTHON", "python3"))
      .getOrCreate()
  }

  override def afterAll(): Unit = {
    spark.stop()
    SharedRuntime.stop()
    LocalFolder.deleteAll(folder)
  }

  /** A query that counts 40,000 keys, after its first batch, and what adds a row to its input. */
  private def start(checkpoint: String): (StreamingQuery, () => Unit) = {
    val session = spark
    import session.implicits._
    val source = sources.getOrElseUpdate(
      checkpoint, MemoryStream[Int](implicitly[org.apache.spark.sql.Encoder[Int]], spark))
    source.addData(0 until 40000)
    val query = source.toDS().groupBy("value").count().writeStream
      .outputMode("update")
      .format("noop")
      .option("checkpointLocation", folder.resolve(checkpoint).toString)
      .start()
    query.processAllAvailable()
    query -> (() => {
      source.addData(1)
      query.processAllAvailable()
    })
  }

  private def metric(query: StreamingQuery, name: String): Long =
    query.recentProgress.filter(_.stateOperators.nonEmpty).last.stateOperators.head.customMetrics.get(name)

  private def fallBacks(query: StreamingQuery): Long = metric(query, "ckptMemoryFallbacks")

  test("the next run of a query, and other queries after it, have the memory of runs that have ended") {
    Seq("one", "one", "two", "three", "one").foreach { name =>
      val (query, addRow) = start(name)
      addRow()
      query.stop()
      assert(fallBacks(query) == 0 && metric(query, "ckptMemoryBytes") > (4 << 20), name)
    }
  }

  test("a query that runs keeps its memory, and one beside it goes on with RocksDB") {
    val (first, addRow) = start("four")
    val (second, _) = start("five")
    second.stop()
    assert(fallBacks(second) > 0)
    addRow()
    first.stop()
    assert(fallBacks(first) == 0 && metric(first, "ckptMemoryBytes") > (4 << 20))
  }
}
