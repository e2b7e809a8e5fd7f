package org.apache.spark.sql.ckpt

import java.nio.file.{DirectoryNotEmptyException, Path}
import java.util.UUID

import scala.collection.mutable

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.ckpt.minor.query.RunId
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.ckpt.transactions.ServedStore
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** Providers as Spark makes them, on real files, ours with a real state server. */
object Stores {
  private val DeleteTries = 100
  private val DeletePauseMs = 50L

  /** Deletes the folder of a test, in which a store that was closed may still write for a moment. */
  def deleteAll(folder: Path, tries: Int = DeleteTries): Unit =
    try LocalFolder.deleteAll(folder)
    catch {
      case _: DirectoryNotEmptyException if tries > 1 =>
        Thread.sleep(DeletePauseMs)
        deleteAll(folder, tries - 1)
    }

  sealed abstract class Kind(val name: String, val format: Int) {
    def make(): StateStoreProvider
  }

  case object Ours extends Kind("ckpt", 2) {
    override def make(): StateStoreProvider = new CkptStateStoreProvider
  }

  case object OursInMemory extends Kind("ckpt in memory", 2) {
    override def make(): StateStoreProvider = new CkptStateStoreProvider
  }

  case object RocksDB extends Kind("RocksDB", 2) {
    override def make(): StateStoreProvider = new RocksDBStateStoreProvider
  }

  case object Hdfs extends Kind("HDFSBacked", 1) {
    override def make(): StateStoreProvider = new HDFSBackedStateStoreProvider
  }

  val keySchema: StructType = new StructType().add("name", StringType).add("number", LongType)
  val rangeSchema: StructType = new StructType().add("number", LongType).add("name", StringType)
  val valueSchema: StructType = new StructType().add("value", LongType).add("pad", BinaryType)
  val nameSchema: StructType = new StructType().add("name", StringType)
  val noPrefix: KeyStateEncoderSpec = NoPrefixKeyStateEncoderSpec(keySchema)
  val prefix: KeyStateEncoderSpec = PrefixKeyScanStateEncoderSpec(keySchema, 1)
  val range: KeyStateEncoderSpec = RangeKeyScanStateEncoderSpec(rangeSchema, Seq(0))
  val timeFirst: KeyStateEncoderSpec = TimestampAsPrefixKeyStateEncoderSpec(keySchema)
  val timeLast: KeyStateEncoderSpec = TimestampAsPostfixKeyStateEncoderSpec(keySchema)

  /** A provider of partition 0 in `folder`. */
  def start(
      kind: Kind,
      folder: Path,
      encoder: KeyStateEncoderSpec = noPrefix,
      families: Boolean = false,
      multiple: Boolean = false,
      memory: String = "16m"): StateStoreProvider = {
    val conf = new SQLConf
    conf.setConfString("spark.sql.streaming.stateStore.checkpointFormatVersion", kind.format.toString)
    conf.setConfString("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    conf.setConfString(Settings.Prefix + "python", sys.env.getOrElse("PYTHON", "python3"))
    conf.setConfString(Settings.Prefix + "memoryLimit", memory) // the process's: the first one counts
    if (kind == OursInMemory) conf.setConfString(Settings.Prefix + "backend", "memory")
    val made = kind.make()
    made.init(
      StateStoreId(folder.resolve("state").toString, 0, 0, StateStoreId.DEFAULT_STORE_NAME), encoder.keySchema,
      valueSchema, encoder, families, new StateStoreConf(conf, Map.empty), ofRun(UUID.randomUUID().toString), multiple,
      None)
    made
  }

  /** The Hadoop configuration of the stores of a run, in a query of one partition. */
  def ofRun(runId: String): Configuration = {
    val hadoop = new Configuration
    hadoop.set(RunId.Announced, runId)
    hadoop.set(ServedStore.StatefulPartitions, "1")
    hadoop.set(StreamExecution.RUN_ID_KEY, runId)
    hadoop
  }

  private val projections = mutable.HashMap.empty[StructType, UnsafeProjection]

  def row(schema: StructType, values: Any*): UnsafeRow = synchronized {
    val fields = values.map {
      case text: String => UTF8String.fromString(text)
      case other => other
    }
    projections.getOrElseUpdate(schema, UnsafeProjection.create(schema))(InternalRow.fromSeq(fields)).copy()
  }

  /** A key of a family with this encoder. */
  def key(encoder: KeyStateEncoderSpec, name: String, number: Long): UnsafeRow =
    if (encoder.keySchema == rangeSchema) row(rangeSchema, number, name) else row(keySchema, name, number)

  def key(name: String, number: Long): UnsafeRow = row(keySchema, name, number)
  def value(number: Long, pad: Int = 0): UnsafeRow = row(valueSchema, number, new Array[Byte](pad))

  /** The version that a commit has made, and its id. */
  final case class Version(number: Long, id: Option[String])

  val Empty: Version = Version(0, None)

  def commit(store: StateStore): Version = {
    val made = store.commit()
    Version(made, store.getStateStoreCheckpointInfo().stateStoreCkptId)
  }

  /** Name, number and value of each row that is left; ends the scan. */
  def rows(encoder: KeyStateEncoderSpec, found: StateStoreIterator[UnsafeRowPair]): List[(String, Long, Long)] =
    try found.map(pair => rowOf(encoder, pair)).toList
    finally found.close()

  def rowOf(encoder: KeyStateEncoderSpec, pair: UnsafeRowPair): (String, Long, Long) = {
    val (name, number) = if (encoder.keySchema == rangeSchema) (1, 0) else (0, 1)
    (pair.key.getString(name), pair.key.getLong(number), pair.value.getLong(0))
  }
}
