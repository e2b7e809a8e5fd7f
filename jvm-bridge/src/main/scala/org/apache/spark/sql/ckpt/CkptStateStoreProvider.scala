package org.apache.spark.sql.ckpt

import java.util.concurrent.{ConcurrentLinkedQueue, RejectedExecutionException}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.rocksdb.RocksDBException

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.changes.SingleVersions
import org.apache.spark.sql.ckpt.codec.{Families, FamilySpec}
import org.apache.spark.sql.ckpt.rows.NearCache
import org.apache.spark.sql.ckpt.server.{Engine, Errand, Json, S3aSettings, Settings, StateServer}
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** The entry point of Spark into pyspark-ckpt: `spark.sql.streaming.stateStore.providerClass`.
  *
  * One provider serves one (operator, partition, store) of one query run in one JVM. It reads rows through a secondary
  * of the state server's database and hands back each transaction's writes as one sorted delta file. The state server
  * alone decides what is stored, uploaded, kept or deleted.
  */
class CkptStateStoreProvider extends StateStoreProvider with SingleVersions with Logging {
  import CkptStateStoreProvider._

  @volatile private var storeId: StateStoreId = _
  private var keySchema: StructType = _
  private var valueSchema: StructType = _
  private var storeConf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var settings: Settings = _
  @volatile private[ckpt] var engine: Engine = _
  private var cache: NearCache = _
  private[ckpt] var families: Families = _
  private var opened: Opened = _
  @volatile private var lastLivePath: String = _
  @volatile private var following = new Errand(() => ())
  @volatile private var snapshotAsked = false
  private var closed = false

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    this.storeId = stateStoreId
    this.keySchema = keySchema
    this.valueSchema = valueSchema
    this.storeConf = storeConf
    this.hadoopConf = hadoopConf
    this.settings = Settings.from(storeConf.sqlConfs)
    if (storeConf.stateStoreEncodingFormat != "unsaferow") {
      throw CkptErrors.invalidInput(
        s"spark.sql.streaming.stateStore.encodingFormat must be unsaferow, got " +
          s"'${storeConf.stateStoreEncodingFormat}'.",
        "The ckpt state store keeps Spark's UnsafeRow bytes. Set this conf to unsaferow.")
    }
    engine = Engine.get(settings)
    cache = new NearCache(engine.budget)
    families = new Families(
      useColumnFamilies,
      stateStoreId.storeName,
      FamilySpec(
        StateStore.DEFAULT_COL_FAMILY_NAME, keySchema, valueSchema, keyStateEncoderSpec, useMultipleValuesPerKey,
        internal = false))
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
      begin(version, beginCall(version, stateStoreCkptId, writes = true))
    }
    new CkptStateStore(this, txn, writable = true)
  }

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore =
    new CkptStateStore(this, loading(version, stateStoreCkptId)(begin(version, stateStoreCkptId)), writable = false)

  /** Runs `load`, and reports a version that does not exist under Spark's own condition. */
  private[ckpt] def loading(version: Long, id: Option[String])(load: => Transaction): Transaction = {
    if (version < 0) throw QueryExecutionErrors.unexpectedStateStoreVersion(version)
    def what = s"version $version${id.fold("")(" with id " + _)} of the $label"
    if (version == Long.MaxValue || version == 0 && id.nonEmpty) {
      throw CkptErrors.missing(what, CkptErrors.notFound("No commit makes such a version."))
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
      store.upgrade()
    case other =>
      throw CkptErrors.lifecycle(s"$other cannot become the write store of version $version of $label.")
  }

  /** Spark's coordinator found that snapshots lag: the next maintenance makes one, after the commit. */
  private def askForSnapshot(asked: Boolean): Unit = if (asked) snapshotAsked = true

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def doSnapshotMaintenance(): Unit = {
    val force = snapshotAsked
    maintain("snapshot", _.put("force", force)).foreach { answer =>
      snapshotAsked = false
      if (answer.hasNonNull("version")) reportSnapshot(answer.get("version").asLong)
    }
  }

  /** Tells Spark's coordinator of a snapshot; a store of which it hears nothing counts as lagging. */
  private def reportSnapshot(version: Long): Unit = if (storeConf.reportSnapshotUploadLag) {
    val id = StateStoreProviderId(storeId, java.util.UUID.fromString(hadoopConf.get(StreamExecution.RUN_ID_KEY)))
    try {
      Option(SparkEnv.get).foreach { env =>
        StateStoreCoordinatorRef.forExecutor(env).snapshotUploaded(id, version, System.currentTimeMillis())
      }
    } catch { // the snapshot is valid, and Spark would unload a store whose maintenance failed
      case NonFatal(failure) => logWarning(s"the driver was not told of the snapshot of version $version", failure)
    }
  }

  override def doCleanupMaintenance(): Unit = maintain("cleanup", identity)

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = {
    // Spark asks on the driver while it plans the query, which is the first moment to refuse a bad option.
    Settings.from(SQLConf.get.getAllConfs)
    Metrics.all ++ Metrics.declared
  }

  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] = Seq(Metrics.RestoreForecast())

  override def close(): Unit = {
    val (last, first) = synchronized {
      val (handle, wasOpen) = (opened, !closed)
      opened = null
      closed = true
      (handle, wasOpen)
    }
    following.settle()
    if (first && cache != null) cache.close()
    Iterator.continually(idleWriters.poll()).takeWhile(_ != null).foreach(_.close())
    if (last != null) closeHandle(last.server, last.handle)
    if (lastLivePath != null) engine.readers.forget(lastLivePath)
  }

  private def closeHandle(server: StateServer, handle: Long): Unit = if (server.alive) {
    tolerant(s"close of $label")(server.call("close", Json.obj().put("handle", handle)))
  }

  // ---- transactions ---------------------------------------------------------------------------------------------

  /** Begins a transaction that only reads. */
  private[ckpt] def begin(version: Long, id: Option[String]): Transaction =
    begin(version, beginCall(version, id, writes = false))

  private[ckpt] def begin(version: Long, call: => Begun): Transaction = {
    val started = System.nanoTime
    following.settle()
    var attempt = 0
    while (true) {
      attempt += 1
      try {
        val begun = call
        openReaderOrAbort(begun, attempt) match {
          case Some(reader) =>
            val txn = new Transaction(
              begun, reader, engine.readers, cache, engine.budget, isCurrent, reportDamage(begun, _))
            txn.loadMs = (System.nanoTime - started) / 1000000
            return txn
          case None =>
            // Either another attempt's commit changed the live database in between, and the next answer names a
            // checkpoint; or the copy is damaged and was reported, and the next answer names one that was restored.
            abort(begun)
            if (attempt >= MaxBegins) {
              throw CkptErrors.lifecycle(
                s"$label: version $version could not be read in $attempt tries: the database in ${begun.path} " +
                  "never showed its version marker.")
            }
        }
      } catch {
        case lost: StateServerLostException if attempt < MaxBegins =>
          logWarning(s"$label: ${lost.getMessage}; trying again")
      }
    }
    throw new IllegalStateException("not reached")
  }

  /** Begins in the state server; if the caller `writes`, state with another number of partitions is refused. */
  private def beginCall(version: Long, id: Option[String], writes: Boolean): Begun = {
    val open = handle()
    val request = Json.obj().put("handle", open.handle).put("version", version)
    id.fold(request.putNull("id"))(request.put("id", _))
    // A ticket is for the Python workers of an operator on groups. A task may also have stores of other operators.
    Option(TaskContext.get()).filter(_ => writes && valueSchema.fieldNames.headOption.contains(GroupState)) match {
      case Some(context) =>
        request.put("attempt", context.taskAttemptId()).put("key_schema", keySchema.json).put("executor", blocksFolder)
      case None => request.putNull("attempt")
    }
    if (writes) request.put("num_partitions", partitions) else request.putNull("num_partitions")
    new Begun(open.server, open.server.call("begin", request, left => abort(new Begun(open.server, left))))
  }

  /** The name of this executor's folder for blocks, the first one that its Python workers have in SPARK_LOCAL_DIRS. No
    * two executors share it, even of different applications.
    */
  private def blocksFolder: String =
    Option(SparkEnv.get).flatMap(_.blockManager.diskBlockManager.localDirs.headOption).fold("")(_.getName)

  private def isCurrent(reader: Reader): Boolean = synchronized(!closed) && reader.path == lastLivePath

  private def openReaderOrAbort(begun: Begun, attempt: Int): Option[Reader] =
    try {
      openReader(begun, attempt)
    } catch {
      case failure: Throwable =>
        abort(begun)
        throw failure
    }

  private def openReader(begun: Begun, attempt: Int): Option[Reader] = {
    if (begun.live && lastLivePath != begun.path) {
      if (lastLivePath != null) engine.readers.forget(lastLivePath)
      lastLivePath = begun.path
    }
    try {
      val reader = engine.readers.take(begun.path, begun.live)
      var shown = false
      try {
        shown = reader.shows(begun.markerKey, begun.markerValue)
        if (!shown && begun.live) {
          reader.catchUp()
          shown = reader.shows(begun.markerKey, begun.markerValue)
        }
      } finally {
        if (!shown) reader.close()
      }
      if (shown) {
        Some(reader)
      } else {
        if (attempt >= MaxMoves) reportDamage(begun, s"${begun.path} does not show its version marker")
        None
      }
    } catch {
      // A database that is being compacted may drop a file after it was listed and before it is opened.
      case failure: RocksDBException if begun.live && attempt == 1 =>
        logWarning(s"$label: ${begun.path} could not be opened because it was being changed: ${failure.getMessage}")
        None
      case failure: RocksDBException =>
        reportDamage(begun, failure)
        None
    }
  }

  /** Makes the state server discard a local copy that cannot be read. The next begin gets a restored one. */
  private def reportDamage(begun: Begun, failure: RocksDBException): Unit = reportDamage(begun, failure.getMessage)

  private def reportDamage(begun: Begun, failure: String): Unit = {
    logWarning(s"$label: the local copy in ${begun.path} cannot be read: $failure")
    if (begun.server.alive) {
      tolerant(s"report of damage of $label") {
        begun.server.call("report_damage", Json.obj().put("txn", begun.number).put("failure", failure))
      }
    }
  }

  /** Makes the writes of `txn` the next version, which is durable on return; returns the metrics of the commit. */
  private[ckpt] def commit(txn: Transaction): StateStoreMetrics = {
    val sealing = System.nanoTime
    val writer = takeWriter()
    val delta =
      try txn.seal(writer, DeltaFile)
      finally idleWriters.add(writer)
    val serving = System.nanoTime
    val answer = txn.begun.server.call("commit", commitRequest(txn, delta))
    val done = System.nanoTime
    CommitReport.metrics(
      storeId, txn, delta, answer, engine.readers.blockCacheBytes / engine.budget.stores,
      (serving - sealing) / 1000000,
      (done - serving) / 1000000)
  }

  /** After a commit, lets the live database and then its idle view catch up in the background, for the next task. */
  private[ckpt] def followBehind(): Unit = {
    val (open, path, at) = synchronized((opened, lastLivePath, engine))
    if (open != null && path != null) {
      val errand = new Errand(() => follow(open, path, at))
      following = errand
      try {
        at.background.execute(errand)
      } catch {
        case _: RejectedExecutionException => () // the engine has ended, and so have its views
      }
    }
  }

  private def follow(open: Opened, path: String, at: Engine): Unit =
    try {
      open.server.call("follow", Json.obj().put("handle", open.handle))
      at.readers.catchUpIdle(path, isCurrent)
    } catch {
      // The next task tries again, and reports the failure if it persists.
      case NonFatal(failure) => logDebug(s"$label did not follow: ${failure.getMessage}")
    }

  private def commitRequest(txn: Transaction, delta: Option[SealedDelta]): ObjectNode = {
    val request = Json.obj().put("txn", txn.begun.number)
    val files = request.putArray("files")
    val rows = request.putObject("rows")
    delta.foreach { sealedDelta =>
      files.add(DeltaFile)
      request.putObject("seals").putObject(DeltaFile)
        .put("bytes", sealedDelta.seal.bytes).put("xxh64", sealedDelta.seal.xxh64)
      sealedDelta.rowChanges.foreach { case (state, change) =>
        if (txn.counts(state)) rows.put(state.toString, change)
      }
    }
    request.put("num_partitions", partitions)
  }

  /** Ends a transaction that only read. */
  private[ckpt] def end(txn: Transaction): Unit = {
    txn.close()
    abort(txn.begun)
  }

  /** Drops a transaction, unless its server has ended, which dropped it. */
  private[ckpt] def abort(begun: Begun): Unit = if (begun.server.alive) {
    tolerant(s"abort of transaction ${begun.number} of $label") {
      begun.server.call("abort", Json.obj().put("txn", begun.number))
    }
  }

  /** Refuses to write state that was written with another number of partitions. */
  private[ckpt] def checkPartitions(begun: Begun): Unit = begun.partitions.filter(_ != partitions).foreach { recorded =>
    throw CkptErrors.invalidInput(
      s"$label was written with $recorded partitions, and the query runs with $partitions.",
      s"Restart with $recorded partitions, or make a checkpoint with another number: pyspark-ckpt rescale.")
  }

  private[ckpt] def reportCommit(version: Long): Unit =
    if (storeConf.commitValidationEnabled) StateStore.reportCommitToCoordinator(version, storeId, hadoopConf)

  private[ckpt] def usesCheckpointIds: Boolean = storeConf.enableStateStoreCheckpointIds

  private[ckpt] def validate(key: UnsafeRow, value: UnsafeRow): Unit =
    if (!families.areSeveral) {
      StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, storeId, storeConf)
    }

  // ---- the server -----------------------------------------------------------------------------------------------

  /** The handle of this store in the running server. In a new server the store is opened again. */
  private[ckpt] def handle(): Opened = synchronized {
    if (closed) throw CkptErrors.lifecycle(s"$label is closed.")
    if (engine.isReplaced) engine = Engine.get(settings)
    val server =
      try engine.server()
      catch {
        case _: CkptException if engine.isReplaced => // another server has its folder
          engine = Engine.get(settings)
          engine.server()
      }
    if (opened == null || opened.server != server) opened = Opened(server, open(server))
    opened
  }

  private def open(server: StateServer): Long = {
    val root = new Path(storeId.checkpointRootLocation).getParent.toString
    val request = Json.obj()
      .put("state_dir", storeId.storeCheckpointLocation().toString)
      .put("checkpoint_root", root)
      .put("operator", storeId.operatorId)
      .put("partition", storeId.partitionId)
      .put("name", storeId.storeName)
      .put("run_id", runId)
      .put("format", if (usesCheckpointIds) 2 else 1)
      .put("min_versions_to_retain", storeConf.minVersionsToRetain)
    request.set[ObjectNode]("options", Json.strings(settings.options))
    val s3a = S3aSettings.of(hadoopConf, Seq(root, settings.remote))
    request.set[ObjectNode]("s3a", Json.strings(s3a.plain))
    if (s3a.secret.nonEmpty) request.put("secrets", server.entrust(s3a.secret))
    server.call("open", request, left => closeHandle(server, left.get("handle").asLong)).get("handle").asLong
  }

  /** The run of the query; empty for a task outside a query, which reads state and must not write. */
  private def runId: String = {
    val inQuery = Option(TaskContext.get()).forall(_.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null)
    if (inQuery) Option(hadoopConf.get(StreamExecution.RUN_ID_KEY)).getOrElse("") else ""
  }

  /** One round of maintenance. A failure is only logged: maintenance runs again, and the store must stay loaded. */
  private def maintain(method: String, ask: ObjectNode => ObjectNode): Option[JsonNode] =
    synchronized(Option(opened)).filter(_.server.alive).flatMap { open =>
      var answer: Option[JsonNode] = None
      tolerant(s"$method of $label") {
        answer = Some(open.server.call(method, ask(Json.obj().put("handle", open.handle))))
      }
      answer
    }

  /** Runs clean-up and only logs its failure, so that it does not hide an earlier one. */
  private[ckpt] def tolerant(what: String)(action: => Unit): Unit =
    try {
      action
    } catch {
      case failure: CkptException => logWarning(s"$what: ${failure.getMessage}")
    }

  private[ckpt] def label: String = {
    val store = if (storeId.storeName == StateStoreId.DEFAULT_STORE_NAME) "" else s", store ${storeId.storeName}"
    s"state of operator ${storeId.operatorId}, partition ${storeId.partitionId}$store"
  }

  /** The query's number of partitions, as its offset log fixes it. */
  private def partitions: Int = {
    val conf = SQLConf.get
    conf.getConfString(StatefulPartitions, conf.numShufflePartitions.toString).toInt
  }

  private val idleWriters = new ConcurrentLinkedQueue[DeltaWriter]
  private def takeWriter(): DeltaWriter =
    Option(idleWriters.poll()).getOrElse(new DeltaWriter(engine.readers.table, settings.compression))
}

private[ckpt] object CkptStateStoreProvider {
  private[ckpt] final case class Opened(server: StateServer, handle: Long)

  private val DeltaFile = "shim.sst"

  /** The first column of the state of an operator with a function for each group (FlatMapGroupsWithStateExecHelper). */
  private val GroupState = "groupState"
  private val MaxBegins = 5

  /** A live database changes at most this many times while a transaction on it begins. */
  private val MaxMoves = 3
  private val StatefulPartitions = "spark.sql.streaming.internal.stateStore.partitions"
}
