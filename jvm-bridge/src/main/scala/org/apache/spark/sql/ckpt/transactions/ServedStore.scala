package org.apache.spark.sql.ckpt.transactions

import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.fence.Fence
import org.apache.spark.sql.ckpt.minor.query.RunId
import org.apache.spark.sql.ckpt.minor.store.CheckpointIds
import org.apache.spark.sql.ckpt.server.StateServer
import org.apache.spark.sql.ckpt.settings.{HadoopSettings, Json, Settings}
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}

/** One store as the running state server knows it: opened there on first use, and again in a new server. */
private[ckpt] final class ServedStore(
    val id: StateStoreId,
    val conf: StateStoreConf,
    val hadoopConf: Configuration,
    val settings: Settings)
  extends Logging {
  import ServedStore._

  @volatile private var current = SharedRuntime.get(settings)
  private var opened: Opened = _
  private var openedWith = Map.empty[String, String]
  private val closed = new AtomicBoolean

  def runtime: SharedRuntime = current

  def isOpen: Boolean = !closed.get

  def label: String = {
    val store = if (id.storeName == StateStoreId.DEFAULT_STORE_NAME) "" else s", store ${id.storeName}"
    s"state of operator ${id.operatorId}, partition ${id.partitionId}$store"
  }

  def usesCheckpointIds: Boolean = CheckpointIds.areUsed(conf)

  /** The run of the query that writes the store; None for a reader of state, which must not write.
    *
    * This and the number of partitions come from the Hadoop configuration of the query's store, which has the confs of the
    * query's session, as they were when the batch was planned. What the task knows can be something else: a foreachBatch
    * function may set confs, and read its frame in another thread or session.
    */
  val run: Option[String] = RunId.of(hadoopConf)

  /** The query's number of partitions, as its offset log fixes it. */
  def partitions: Int = Option(hadoopConf.get(StatefulPartitions)).map(_.toInt).getOrElse {
    throw CkptErrors.lifecycle(
      s"$label: the query's number of partitions is unknown, because its session does not have the extensions of " +
        "the jar. Call pyspark_ckpt.configure(builder) before the session is made, or pyspark_ckpt.attach(session) " +
        "before the query starts.")
  }

  /** The handle of this store in the running server. The store is opened again in a new server, and for a
    * retried task if the secrets in Hadoop's credential files have changed.
    */
  def handle(): Opened = synchronized {
    if (closed.get) throw CkptErrors.lifecycle(s"$label is closed.")
    if (current.isReplaced) current = SharedRuntime.get(settings)
    val server = current.server()
    if (opened == null || opened.server != server) opened = Opened(server, open(server, places()))
    else if (openedWith.nonEmpty && isRetried) {
      val (found, last) = (places(), opened)
      if (found.secret != openedWith) {
        logWarning(s"$label is opened again with changed secrets from Hadoop's credential files.")
        opened = Opened(server, open(server, found))
        closeHandle(last.server, last.handle)
      }
    }
    opened
  }

  private def isRetried: Boolean = Option(TaskContext.get()).exists(_.attemptNumber() > 0)

  /** The last handle, whose server may have ended; None if there is none, or if the store is closed. */
  def lastHandle: Option[Opened] = synchronized(Option(opened).filterNot(_ => closed.get))

  private def root: String = new Path(id.checkpointRootLocation).getParent.toString

  private def places(): HadoopSettings = HadoopSettings.of(hadoopConf, Seq(root, settings.remote))

  private def open(server: StateServer, hadoop: HadoopSettings): Long = {
    val request = Json.obj()
      .put("state_dir", id.storeCheckpointLocation().toString)
      .put("checkpoint_root", root)
      .put("operator", id.operatorId)
      .put("partition", id.partitionId)
      .put("name", id.storeName)
      .put("run_id", run.getOrElse(""))
      .put("epoch", hadoopConf.getLong(Fence.EpochKey, 0))
      .put("format", if (usesCheckpointIds) 2 else 1)
      .put("min_versions_to_retain", conf.minVersionsToRetain)
    request.set[ObjectNode]("options", Json.strings(settings.options))
    request.set[ObjectNode]("hadoop", Json.strings(hadoop.plain))
    if (hadoop.secret.nonEmpty) request.put("secrets", server.entrust(hadoop.secret))
    val answer = server.call("open", request, left => closeHandle(server, left.get("handle").asLong))
    openedWith = hadoop.secret
    answer.get("handle").asLong
  }

  /** Gives out no further handle; returns whether it did until now. Does not wait for a handle that is being opened. */
  def stopOpening(): Boolean = closed.compareAndSet(false, true)

  /** Closes the last handle, after `stopOpening`. */
  def closeHandle(): Unit = {
    val last = synchronized {
      val handle = Option(opened)
      opened = null
      handle
    }
    last.foreach(open => closeHandle(open.server, open.handle))
  }

  private def closeHandle(server: StateServer, handle: Long): Unit = if (server.alive) {
    tolerant(s"close of $label")(server.call("close", Json.obj().put("handle", handle)))
  }

  /** One round of maintenance. A failure is only logged: maintenance runs again, and the store must stay loaded. Spark
    * would unload it; Spark 3.5, all stores of the executor.
    */
  def maintain(method: String, ask: ObjectNode => ObjectNode): Option[JsonNode] =
    lastHandle.filter(_.server.alive).flatMap { open =>
      var answer: Option[JsonNode] = None
      tolerant(s"$method of $label") {
        answer = Some(open.server.call(method, ask(Json.obj().put("handle", open.handle))))
      }
      answer
    }

  /** Drops a transaction, unless its server has ended, which dropped it. */
  def abort(begun: Begun): Unit = if (begun.server.alive) {
    tolerant(s"abort of transaction ${begun.number} of $label") {
      begun.server.call("abort", Json.obj().put("txn", begun.number))
    }
  }

  /** Makes the state server discard a local copy that cannot be read. The next begin gets a restored one. */
  def reportDamage(begun: Begun, failure: String): Unit = {
    logWarning(s"$label: the local copy in ${begun.path} cannot be read: $failure")
    if (begun.server.alive) {
      tolerant(s"report of damage of $label") {
        begun.server.call("report_damage", Json.obj().put("txn", begun.number).put("failure", failure))
      }
    }
  }

  /** Runs clean-up and only logs its failure, so that it does not hide an earlier one. */
  def tolerant(what: String)(action: => Unit): Unit =
    try {
      action
    } catch {
      case failure: CkptException => logWarning(s"$what: ${failure.getMessage}")
      case NonFatal(failure) => logWarning(what, failure)
    }
}

private[ckpt] object ServedStore {
  final case class Opened(server: StateServer, handle: Long)

  /** A conf of a query's own session. */
  val StatefulPartitions = "spark.sql.streaming.internal.stateStore.partitions"
}
