package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path}
import java.util.UUID

import org.scalatest.{BeforeAndAfterAll, BeforeAndAfterEach}
import org.scalatest.concurrent.Eventually
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.{Seconds, Span}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.ckpt.transactions.SharedRuntime
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** A provider by itself, with a real state server and real files, and no Spark job. */
abstract class ProviderTests(backend: String) extends AnyFunSuite with BeforeAndAfterEach with BeforeAndAfterAll
  with Eventually {
  override implicit val patienceConfig: PatienceConfig = PatienceConfig(timeout = Span(20, Seconds))

  protected var folder: Path = _
  protected var provider: CkptStateStoreProvider = _

  protected val keySchema = new StructType().add("name", StringType).add("number", LongType)
  protected val valueSchema = new StructType().add("value", LongType)
  protected val noPrefix = NoPrefixKeyStateEncoderSpec(keySchema)

  override def beforeEach(): Unit = folder = Files.createTempDirectory("provider")

  override def afterEach(): Unit = {
    if (provider != null) provider.close()
    provider = null
    Stores.deleteAll(folder)
  }

  override def afterAll(): Unit = SharedRuntime.stop()

  protected def start(
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

  protected def row(schema: StructType, values: Any*): UnsafeRow = {
    val fields = values.map {
      case text: String => UTF8String.fromString(text)
      case other => other
    }
    projections.getOrElseUpdate(schema, UnsafeProjection.create(schema))(InternalRow.fromSeq(fields)).copy()
  }

  protected def key(name: String, number: Long): UnsafeRow = row(keySchema, name, number)
  protected def value(number: Long): UnsafeRow = row(valueSchema, number)

  protected def pairs(rows: StateStoreIterator[UnsafeRowPair]): Seq[(String, Long, Long)] =
    try rows.map(pair => (pair.key.getString(0), pair.key.getLong(1), pair.value.getLong(0))).toList
    finally rows.close()

  /** Runs one transaction and returns the id of the version it made. */
  protected def transaction(version: Long, id: Option[String])(work: StateStore => Unit): (Long, Option[String]) = {
    val store = provider.getStore(version, id)
    work(store)
    val made = store.commit()
    assert(made == version + 1 && store.hasCommitted)
    val info = store.getStateStoreCheckpointInfo()
    assert(info.batchVersion == made && info.baseStateStoreCkptId == id)
    (made, info.stateStoreCkptId)
  }
}
