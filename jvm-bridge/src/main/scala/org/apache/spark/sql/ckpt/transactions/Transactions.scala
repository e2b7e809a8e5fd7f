package org.apache.spark.sql.ckpt.transactions

import java.util.UUID
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.atomic.AtomicReference

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode
import org.rocksdb.RocksDBException

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.{CkptErrors, StateServerLostException}
import org.apache.spark.sql.ckpt.rows.{NearCache, Residence}
import org.apache.spark.sql.ckpt.server.CancellableTask
import org.apache.spark.sql.ckpt.settings.{Json, Settings}
import org.apache.spark.sql.execution.streaming.state.{StateStoreMetrics, StateStoreProviderId}

/** The transactions of one store, from `begin` to `commit` or `abort`, and what they leave for the next one: rows in
  * memory, a view that follows the live database, and idle writers.
  */
private[ckpt] final class Transactions(served: ServedStore, settings: Settings) extends Logging {
  import Transactions._

  private val cache = new NearCache(served.runtime.budget)
  private val residents = served.runtime.residents
  private val residence =
    new Residence(served.runtime.budget, settings.isInMemory, () => residents.freeEnded(this), warnOfFallBack)
  private val idleWriters = new ConcurrentLinkedQueue[DeltaWriter]
  private val lastLivePath = new AtomicReference[String]

  /** Whether the last transaction has read the database. That of a keyed operator without timers does not. */
  @volatile private var reads = true
  @volatile private var catchingUp = new CancellableTask(() => ())
  private val closing = new Closing

  if (settings.isInMemory) residents.add(this)

  private def label: String = served.label

  /** The store of a query, of one run, as Spark's coordinator knows it. */
  lazy val providerId: StateStoreProviderId =
    StateStoreProviderId(served.id, UUID.fromString(served.run.get))

  /** Whether it has taken memory for its whole state. */
  def holdsMemory: Boolean = residence.held > 0

  /** Gives up all rows in memory, because the run of the query has ended. */
  def leaveMemory(): Unit = {
    residence.close()
    cache.empty()
  }

  /** Begins a transaction by `call`, which may be repeated, and says whether it `writes`. */
  def begin(version: Long, call: (ServedStore.Opened, Boolean) => Begun, writes: Boolean): Transaction = {
    val started = System.nanoTime
    catchingUp.cancelOrAwait()
    val runtime = served.runtime
    val place = if (served.run.nonEmpty) residence else Residence.none(runtime.budget)
    val end = closing.enter()
    try {
      val (begun, reader) = beginView(version, call(served.handle(), writes), canWait(place, _))
      val view = new LateView(begun, () => beginView(version, call(begun.opened, false), _ => false))
      val txn = new Transaction(
        begun, reader, () => view.reader(), runtime.readers, cache, runtime.budget, place, isCurrent,
        failure => served.reportDamage(view.begun, failure.getMessage),
        hasRead => {
          reads = hasRead
          try view.close()
          finally end()
        })
      txn.loadMs = (System.nanoTime - started) / 1000000
      txn
    } catch {
      case failure: Throwable =>
        end()
        throw failure
    }
  }

  /** Whether no view is needed until a row is asked for: the near cache has all rows, or there are none, or only workers
    * read the database.
    */
  private def canWait(place: Residence, begun: Begun): Boolean =
    place.isOn && (begun.markerValue == null || cache.hasAll(begun.tag)) ||
      !reads && Transaction.haveKeyed(begun.states)

  /** Begins in the state server, and opens a view of the version unless that can wait. */
  private def beginView(version: Long, call: => Begun, canWait: Begun => Boolean): (Begun, Option[Reader]) = {
    var attempt = 0
    while (true) {
      attempt += 1
      try {
        val begun = call
        if (canWait(begun)) {
          Option(lastLivePath.get).foreach(served.runtime.readers.forget) // nobody lets it catch up
          return (begun, None)
        }
        val reader = openReaderOrAbort(begun, attempt)
        if (reader.nonEmpty) return (begun, reader)
        // Either another attempt's commit changed the live database in between, and the next answer names a
        // checkpoint; or the copy is damaged and was reported, and the next answer names one that was restored.
        served.abort(begun)
        if (attempt >= MaxBegins) {
          throw CkptErrors.lifecycle(
            s"$label: version $version could not be read in $attempt tries: the database in ${begun.path} " +
              "never showed its version marker.")
        }
      } catch {
        case lost: StateServerLostException if attempt < MaxBegins =>
          logWarning(s"$label: ${lost.getMessage}; trying again")
      }
    }
    throw new IllegalStateException("not reached")
  }

  /** The view of a transaction, which may be opened long after the transaction began. The live database may have moved on
    * by then. So a late view has a transaction of its own in the state server, which only reads. It has the handle of the
    * first one: the store may be closed meanwhile, for others than this task.
    */
  private final class LateView(first: Begun, open: () => (Begun, Option[Reader])) {
    private var late: Begun = _

    /** The transaction in the state server whose local copy is read. */
    def begun: Begun = if (late == null) first else late

    def reader(): Reader = {
      val (begun, reader) = open()
      late = begun
      reader.get
    }

    def close(): Unit = if (late != null) served.abort(late)
  }

  private def warnOfFallBack(neededBytes: Long): Unit = logWarning(
    s"$label: its state does not fit into the memory that the stores of this executor share (it needs at least " +
      s"${neededBytes >> 20} MiB, and others have ${served.runtime.budget.residentBytes >> 20} of " +
      s"${served.runtime.budget.residentLimit >> 20} MiB). " +
      "The store uses RocksDB until the query is started again: raise memoryLimit, or set backend to rocksdb.")

  private def isCurrent(reader: Reader): Boolean = served.isOpen && reader.path == lastLivePath.get

  private def openReaderOrAbort(begun: Begun, attempt: Int): Option[Reader] =
    try {
      openReader(begun, attempt)
    } catch {
      case failure: Throwable =>
        served.abort(begun)
        throw failure
    }

  private def openReader(begun: Begun, attempt: Int): Option[Reader] = {
    val readers = served.runtime.readers
    if (begun.live) Option(lastLivePath.getAndSet(begun.path)).filter(_ != begun.path).foreach(readers.forget)
    try {
      val reader = readers.take(begun.path, begun.live)
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
        if (attempt >= MaxMoves) served.reportDamage(begun, s"${begun.path} does not show its version marker")
        None
      }
    } catch {
      // A database that is being compacted may drop a file after it was listed and before it is opened.
      case failure: RocksDBException if begun.live && attempt == 1 =>
        logWarning(s"$label: ${begun.path} could not be opened because it was being changed: ${failure.getMessage}")
        None
      case failure: RocksDBException =>
        served.reportDamage(begun, failure.getMessage)
        None
    }
  }

  /** Makes the writes of `txn` the next version, which is durable on return; returns the metrics of the commit. */
  def commit(txn: Transaction): StateStoreMetrics = {
    val sealing = System.nanoTime
    val writer = takeWriter()
    val delta =
      try txn.seal(writer, DeltaFile)
      finally idleWriters.add(writer)
    val serving = System.nanoTime
    val answer = txn.begun.server.call("commit", commitRequest(txn, delta))
    Option(Json.text(answer, "pack")).foreach(served.runtime.packs.follow(_, txn.begun.server))
    txn.committed(answer.get("id").asText, answer.path("states"))
    txn.workerRows = CommitReport.workerRows(answer)
    val spills = txn.spilledRuns + answer.path("metrics").path("spilled_runs").asLong
    if (spills > 0) {
      logInfo(
        s"$label: version ${txn.begun.version + 1} did not fit in memory: $spills spills to local disk")
    }
    val done = System.nanoTime
    val runtime = served.runtime
    CommitReport.metrics(
      served.id, txn, delta, answer, runtime.readers.blockCacheBytes / runtime.budget.stores,
      (serving - sealing) / 1000000,
      (done - serving) / 1000000)
  }

  private def takeWriter(): DeltaWriter =
    Option(idleWriters.poll()).getOrElse(new DeltaWriter(served.runtime.readers.table, settings.compression))

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
    if (served.run.nonEmpty) request.put("num_partitions", served.partitions) // else it is refused
    request
  }

  /** After a commit, lets the live database and then its idle view catch up in the background, for the next task. */
  def catchUpInBackground(): Unit = {
    val (open, path, at) = (served.lastHandle, lastLivePath.get, served.runtime)
    if (open.nonEmpty && path != null && at.readers.haveIdle(path)) {
      val task = new CancellableTask(() => catchUp(open.get, path, at))
      catchingUp = task
      at.runLater(task) // if not, the runtime has ended, and so have its views
    }
  }

  private def catchUp(open: ServedStore.Opened, path: String, at: SharedRuntime): Unit =
    try {
      open.server.call("await_ingest", Json.obj().put("handle", open.handle))
      at.readers.catchUpIdle(path, isCurrent)
    } catch {
      // The next task tries again, and reports the failure if it persists.
      case NonFatal(failure) => logDebug(s"$label did not catch up: ${failure.getMessage}")
    }

  /** Ends a transaction that only read. */
  def end(txn: Transaction): Unit = {
    txn.close()
    served.abort(txn.begun)
  }

  /** Closes the store, once the transactions of running tasks have ended. A task does not wait for it: Spark 3.5 and 4.0
    * let tasks close other stores, under a lock that all tasks of the executor need.
    */
  def close(): Unit = if (served.stopOpening()) {
    closing.whenEmpty { () =>
      if (TaskContext.get() == null || !served.runtime.runLater(() => closeNow())) closeNow()
    }
  }

  private def closeNow(): Unit = {
    catchingUp.cancelOrAwait()
    cache.close()
    leaveMemory()
    residents.remove(this)
    Iterator.continually(idleWriters.poll()).takeWhile(_ != null).foreach(_.close())
    served.closeHandle()
    Option(lastLivePath.get).foreach(served.runtime.readers.forget)
  }
}

private[ckpt] object Transactions {
  private val DeltaFile = "shim.sst"
  private val MaxBegins = 5

  /** A live database changes at most this many times while a transaction on it begins. */
  private val MaxMoves = 3
}
