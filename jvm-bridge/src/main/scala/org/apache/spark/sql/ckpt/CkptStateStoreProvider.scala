package org.apache.spark.sql.ckpt

import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.changes.MinorReaders
import org.apache.spark.sql.ckpt.codec.{Families, FamilySpec}
import org.apache.spark.sql.ckpt.minor.KeyStateEncoderSpec
import org.apache.spark.sql.ckpt.minor.codec.StoreErrors
import org.apache.spark.sql.ckpt.minor.store.{DriverReports, MinorStateStoreProvider, RowValidation}
import org.apache.spark.sql.ckpt.settings.{Json, Metrics, Settings}
import org.apache.spark.sql.ckpt.store.{CkptStateStore, ProvidedStore}
import org.apache.spark.sql.ckpt.transactions.{Begun, ServedStore, Transaction, Transactions}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** The entry point of Spark into pyspark-ckpt: `spark.sql.streaming.stateStore.providerClass`.
  *
  * One provider serves one (operator, partition, store) of one query run in one JVM. It reads rows through a secondary
  * of the state server's database and hands back each transaction's writes as one sorted delta file. The state server
  * alone decides what is stored, uploaded, kept or deleted.
  */
class CkptStateStoreProvider extends MinorStateStoreProvider with MinorReaders with ProvidedStore with Logging {
  import CkptStateStoreProvider._

  @volatile private var storeId: StateStoreId = _
  private var keySchema: StructType = _
  private var valueSchema: StructType = _
  private var evolution: String => Seq[StructType] = _
  private[ckpt] var served: ServedStore = _
  private[ckpt] var transactions: Transactions = _
  private[ckpt] var families: Families = _
  private val snapshotAsked = new AtomicBoolean
  private val wasMaintained = new AtomicBoolean
  private val isInMaintenance = new AtomicBoolean

  override protected def open(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      evolution: String => Seq[StructType]): Unit = {
    this.storeId = stateStoreId
    this.keySchema = keySchema
    this.valueSchema = valueSchema
    this.evolution = evolution
    val settings = Settings.from(storeConf.sqlConfs)
    served = new ServedStore(stateStoreId, storeConf, hadoopConf, settings)
    transactions = new Transactions(served, settings)
    families = new Families(
      useColumnFamilies,
      stateStoreId.storeName,
      FamilySpec(
        Families.Default, keySchema, valueSchema, keyStateEncoderSpec, useMultipleValuesPerKey,
        internal = false,
        // An operator with column families has nothing in this one, and perhaps no schema.
        if (useColumnFamilies) Nil else valueSchemas(Families.Default)))
  }

  override def stateStoreId: StateStoreId = storeId

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    if (loadEmpty) throw CkptErrors.unsupported("a load of an empty store", "it rewrites state offline")
    askForSnapshot(forceSnapshotOnCommit)
    val txn = loading(version, stateStoreCkptId) {
      transactions.begin(version, beginCall(version, stateStoreCkptId), writes = true)
    }
    maintainFirst()
    new CkptStateStore(this, txn, writable = true)
  }

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore = {
    val txn = loading(version, stateStoreCkptId)(begin(version, stateStoreCkptId))
    opened(new CkptStateStore(this, txn, writable = false))
  }

  /** Runs `load`, and reports a version that does not exist under Spark's own condition. */
  private[ckpt] def loading(version: Long, id: Option[String])(load: => Transaction): Transaction = {
    if (version < 0) throw StoreErrors.unexpectedVersion(version)
    def what = s"version $version${id.fold("")(" with id " + _)} of the $label"
    if (version == Long.MaxValue || version == 0 && id.nonEmpty) {
      throw CkptErrors.missing(what, CkptErrors.notFound("No commit can make this version."))
    }
    try {
      load
    } catch {
      case failure: CkptException if failure.isMissing => throw CkptErrors.missing(what, failure)
    }
  }

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore = readStore match {
    case store: CkptStateStore if store.version == version && store.id == storeId =>
      askForSnapshot(forceSnapshotOnCommit)
      maintainFirst()
      store.upgrade()
    case other =>
      throw CkptErrors.lifecycle(s"$other cannot become the write store of version $version of $label.")
  }

  /** Spark's coordinator found that snapshots lag: the next maintenance makes one, after the commit. */
  private def askForSnapshot(asked: Boolean): Unit = if (asked) snapshotAsked.set(true)

  /** Starts one round of maintenance when the run first writes this store. Spark starts its first round only after
    * the maintenance interval, so shorter runs would never leave a snapshot or delete anything.
    */
  private def maintainFirst(): Unit = if (wasMaintained.compareAndSet(false, true)) maintainInBackground()

  override def doMaintenance(): Unit = if (sharesMaintenanceThread) maintainInBackground() else maintain()

  /** Runs a round of maintenance on one of the threads of this executor, unless a round runs or waits. */
  private def maintainInBackground(): Unit = if (isInMaintenance.compareAndSet(false, true)) {
    val begins = served.runtime.maintain { () =>
      try maintain()
      finally isInMaintenance.set(false)
    }
    if (!begins) isInMaintenance.set(false)
  }

  private def maintain(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def doSnapshotMaintenance(): Unit = {
    val force = snapshotAsked.getAndSet(false) // it may be asked for again while this one is made
    val answer = served.maintain("snapshot", _.put("force", force))
    if (answer.isEmpty) askForSnapshot(force)
    answer.filter(_.hasNonNull("version")).foreach(made => reportSnapshot(made.get("version").asLong))
  }

  private def reportSnapshot(version: Long): Unit =
    try DriverReports.snapshot(storeId, version, served.conf, served.hadoopConf)
    catch { // the snapshot is valid, and Spark would unload a store whose maintenance failed
      case NonFatal(failure) => logWarning(s"the driver was not told of the snapshot of version $version", failure)
    }

  override def doCleanupMaintenance(): Unit = served.maintain("cleanup", identity)

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = {
    // Spark asks on the driver while it plans the query, which is the first moment to refuse a bad option.
    Settings.from(SQLConf.get.getAllConfs)
    Metrics.all ++ Metrics.declared
  }

  override def close(): Unit = if (transactions != null) transactions.close()

  override private[ckpt] def valueSchemas(family: String): Seq[StructType] = evolution(family)

  // ---- pieces ---------------------------------------------------------------------------------------------------

  private def label: String = served.label

  override private[ckpt] def begin(version: Long, id: Option[String]): Transaction =
    transactions.begin(version, beginCall(version, id), writes = false)

  /** Begins in the state server; if the caller `writes`, state with another number of partitions is refused. */
  private def beginCall(version: Long, id: Option[String])(open: ServedStore.Opened, writes: Boolean): Begun = {
    val request = Json.obj().put("handle", open.handle).put("version", version)
    id.fold(request.putNull("id"))(request.put("id", _))
    // A ticket is for the Python workers of an operator on groups. A task may also have stores of other operators.
    Option(TaskContext.get()).filter(_ => writes && valueSchema.fieldNames.headOption.contains(GroupState)) match {
      case Some(context) =>
        request.put("attempt", context.taskAttemptId()).put("key_schema", keySchema.json).put("executor", blocksFolder)
      case None => request.putNull("attempt")
    }
    // Up to 4.2, Spark's reader of state opens stores of transformWithState to write, with any number of partitions.
    if (writes && served.run.nonEmpty) request.put("num_partitions", served.partitions)
    else request.putNull("num_partitions")
    new Begun(open, open.server.call("begin", request, left => served.abort(new Begun(open, left))))
  }

  /** The name of this executor's folder for blocks, the first one that its Python workers have in SPARK_LOCAL_DIRS. No
    * two executors share it, even of different applications.
    */
  private def blocksFolder: String =
    Option(SparkEnv.get).flatMap(_.blockManager.diskBlockManager.localDirs.headOption).fold("")(_.getName)

  override private[ckpt] def checkPartitions(begun: Begun): Unit = {
    val partitions = served.partitions
    begun.partitions.filter(_ != partitions).foreach { recorded =>
      throw CkptErrors.invalidInput(
        s"$label was written with $recorded partitions, and the query runs with $partitions.",
        s"Restart with $recorded partitions, or make a checkpoint with another number: " +
          s"`pyspark-ckpt checkpoint rescale CHECKPOINT NEW_CHECKPOINT -n $partitions`.")
    }
  }

  override private[ckpt] def reportCommit(version: Long): Unit =
    DriverReports.commit(storeId, version, served.conf, served.hadoopConf)

  override private[ckpt] def validate(key: UnsafeRow, value: UnsafeRow): Unit =
    if (!families.areSeveral) {
      RowValidation.check(key, keySchema, value, valueSchema, storeId, served.conf)
    }
}

private[ckpt] object CkptStateStoreProvider {

  /** Whether queries with this conf keep their state here. */
  def isChosen(conf: SQLConf): Boolean =
    conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) == classOf[CkptStateStoreProvider].getName || isDefault(conf)

  /** Whether they do so although the conf names no provider. */
  def isDefault(conf: SQLConf): Boolean =
    !conf.contains(SQLConf.STATE_STORE_PROVIDER_CLASS.key) && Settings.from(conf.getAllConfs).isDefaultStore

  /** The first column of the state of an operator with a function for each group (FlatMapGroupsWithStateExecHelper). */
  private val GroupState = "groupState"
}
