package org.apache.spark.sql.ckpt.plan

import java.io.ByteArrayInputStream
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.{Base64, UUID}
import java.util.concurrent.{ConcurrentLinkedQueue, CountDownLatch}
import java.util.concurrent.TimeUnit.SECONDS
import java.util.zip.GZIPInputStream

import org.json4s.jackson.JsonMethods.parse
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.streaming.StreamingQuery
import org.apache.spark.sql.streaming.StreamingQueryListener.{QueryStartedEvent, QueryTerminatedEvent}

class EventTellerSuite extends AnyFunSuite with BeforeAndAfterAll {
  private var spark: SparkSession = _

  override def beforeAll(): Unit = {
    spark = SparkSession.builder()
      .master("local[2]")
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.sql.warehouse.dir", Files.createTempDirectory("event-teller").toString)
      .getOrCreate()
  }

  override def afterAll(): Unit = spark.stop()

  private def start(): StreamingQuery =
    spark.readStream.format("rate").load().writeStream.format("noop").start()

  test("a query that is stopped while its start is told does not keep later ones from being told") {
    val told = new ConcurrentLinkedQueue[UUID]
    val begun = new CountDownLatch(1)
    spark.streams.addListener(new EventTeller(new PythonEvents {
      override def onQueryProgress(text: String, tookNs: Long): Unit = ()
      override def onQueryTerminated(event: QueryTerminatedEvent): Unit = ()
      override def onQueryStarted(event: QueryStartedEvent): Unit = {
        told.add(event.runId)
        if (told.size == 1) {
          begun.countDown()
          while (!Thread.currentThread.isInterrupted) Thread.onSpinWait()
        }
      }
    }))
    val stopper = new Thread(() => {
      begun.await(60, SECONDS)
      spark.streams.active.foreach(_.stop())
    })
    stopper.start()
    val first = start()
    stopper.join(60000)
    assert(!first.isActive)
    val second = start()
    assert(told.toArray.toSeq == Seq(first.runId, second.runId))
    second.stop()
  }

  test("a text has what is exported, and is compressed if it is long") {
    def progress(rows: Int): String = s"""{"id":"1","stateOperators":[{"numRowsTotal":$rows}]"""
    val sources = s""","sources":["${"x" * 10000}"],"sink":{},"observedMetrics":{}}"""
    assert(EventTeller.textOf(parse(progress(7) + sources)) == progress(7) + "}")

    val long = s"""{"name":"${"ключ" * 2000}"}"""
    val packed = new ByteArrayInputStream(Base64.getDecoder.decode(EventTeller.textOf(parse(long))))
    assert(new String(new GZIPInputStream(packed).readAllBytes, UTF_8) == long)
  }
}
