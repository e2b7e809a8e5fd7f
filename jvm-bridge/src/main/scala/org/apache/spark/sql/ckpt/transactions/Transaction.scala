package org.apache.spark.sql.ckpt.transactions

import java.nio.file.Files
import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.rocksdb.{RocksDBException, RocksIterator}

import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.minor.codec.{Bytes, RocksRows}
import org.apache.spark.sql.ckpt.rows.{
  ByteMap,
  Cursor,
  KnownPrefixes,
  MergedCursor,
  NearCache,
  Residence,
  RocksCursor,
  WriteSet
}
import org.apache.spark.sql.ckpt.settings.MemoryBudget

/** One transaction's rows: reads of one version through a reader below the write set, and the sealed delta.
  *
  * `openView`: opens the reader, if it is not `opened`, when a row is asked for that is not in memory. A transaction that
  * has all rows in memory never does.
  * A look-up leaves its value in `valueBase`, from `valueFrom`, `valueLength` long; those bytes change only with a `put`
  * that overwrites.
  * `onDamage` is called when the database cannot be read; the failure is raised as well. `onClose` is called after the
  * reader was given back, with whether a row was asked for that is not in memory.
  * Not thread-safe: callers hold its lock.
  */
private[ckpt] final class Transaction(
    val begun: Begun,
    opened: Option[Reader],
    openView: () => Reader,
    readers: Readers,
    cache: NearCache,
    budget: MemoryBudget,
    residence: Residence,
    keepReader: Reader => Boolean,
    onDamage: RocksDBException => Unit,
    onClose: Boolean => Unit) {

  private val lent = cache.lend(begun.tag)
  private val writes = new WriteSet(lent, begun.staging, readers.runOptions, budget, residence)
  private var hasWorkers = Transaction.haveKeyed(begun.states)
  if (begun.markerValue == null && writes.canComplete) writes.complete(true) // version 0 has no rows
  private var isCommitted = false
  private val idleIterators = new java.util.ArrayDeque[RocksIterator]
  private val openScans = mutable.HashSet.empty[Cursor]
  private val scanned = new Array[Array[Byte]](Transaction.RememberedScans)
  private val prefixes = new KnownPrefixes(writes)
  private val droppedStates = mutable.HashSet.empty[Int]
  private var closed = false
  private var view: Reader = opened.orNull
  private var hasRead = false

  var valueBase: Array[Byte] = _
  var valueFrom: Int = 0
  var valueLength: Int = 0
  private var scratch = new Array[Byte](1 << 12)
  private var keyScratch = new Array[Byte](1 << 8)

  var loadMs = 0L
  var cacheHits = 0L
  var cacheMisses = 0L
  var existenceReads = 0L

  def spilledRuns: Int = writes.runs
  def writeSetBytes: Long = writes.bytes

  /** Bytes of unwritten rows that were read, or kept from the previous transaction. */
  def cacheBytes: Long = math.max(0, writes.heapBytes - writes.bytes)

  /** Whether all rows of the state are in memory. */
  def isComplete: Boolean = writes.isComplete

  /** Time in which the reader caught up, since the last call. */
  def takeCatchUpMs(): Long = if (view == null) 0 else view.takeCatchUpMs()

  /** Opens the reader, unless that has been done. */
  def reader: Reader = {
    hasRead = true
    if (view == null) view = openView()
    view
  }

  /** Bytes of the state if all of it is in memory, else 0. */
  def residentBytes: Long = if (writes.isComplete) writes.heapBytes else 0

  /** Whether the store needed more memory than it could get. */
  def fellBack: Boolean = residence.fellBack

  /** Looks up `key`. If the result is true, `valueBase` has the value that this transaction sees. */
  def get(key: Array[Byte], length: Int): Boolean = {
    checkOpen()
    val hash = ByteMap.hash(key, length)
    val known = findOrTakeAll(key, length, hash)
    val entry =
      if (known < 0 && !writes.isComplete) {
        cacheMisses += 1
        load(key, length, hash)
      } else {
        if (known < 0 || !writes.map.isWritten(known)) cacheHits += 1
        known
      }
    val map = writes.map
    val present = entry >= 0 && map.hasValue(entry)
    if (present) {
      valueBase = map.valueSlab(entry)
      valueFrom = map.valueOffset(entry)
      valueLength = map.valueLength(entry)
    }
    writes.keepToBudget()
    present
  }

  /** Puts a row; `overwrites`: nobody reads its former value any more. */
  def put(key: Array[Byte], length: Int, base: AnyRef, offset: Long, size: Int, overwrites: Boolean): Unit =
    writes.put(entryForWrite(key, length), base, offset, size, overwrites)

  /** Adds bytes to the end of a row's value, or creates the row with them. */
  def append(key: Array[Byte], length: Int, bytes: Array[Byte]): Unit = {
    val hash = ByteMap.hash(key, length)
    val known = findOrTakeAll(key, length, hash)
    val entry =
      if (known >= 0) known
      else if (writes.isComplete) writes.insert(key, length, hash, inBase = false)
      else load(key, length, hash)
    writes.extend(entry, bytes, bytes.length)
  }

  def delete(key: Array[Byte], length: Int): Unit = writes.delete(entryForWrite(key, length))

  /** Deletes all rows of [lower, upper). */
  def deleteRange(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Unit = {
    checkOpen()
    writes.deleteWritten(state, lower, upper)
    val rows =
      if (hasAll) writes.allRows(state, lower, upper, whole, _ => ())
      else new MergedCursor((writes.spilledCursors(lower, upper) :+ rangeScan(lower, upper, whole)).toArray, _ => ())
    try {
      while (rows.valid) {
        if (!rows.deleted) writes.deleteBelow(rows.key, rows.wasThere)
        rows.advance()
      }
    } finally {
      rows.close()
    }
  }

  /** Rows of [lower, upper) as this transaction sees them now, in key order. The caller closes it. */
  def scan(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Cursor = {
    checkOpen()
    if (hasAll) {
      cacheHits += 1
      val rows = writes.allRows(state, lower, upper, whole, scan => openScans.remove(scan))
      openScans.add(rows)
      rows
    } else {
      scanPart(state, lower, upper, whole)
    }
  }

  private def scanPart(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Cursor = {
    val isPrefix = !whole && !KeyCodec.isOrdered(state)
    val inMemory = if (isPrefix) prefixes.rows(state, lower, scan => openScans.remove(scan)) else null
    if (inMemory != null) {
      cacheHits += 1
      openScans.add(inMemory)
      inMemory
    } else {
      val base = if (isPrefix) prefixScan(lower, upper) else rangeScan(lower, upper, whole)
      val sources = (writes.cursors(state, lower, upper, whole) :+ base).toArray
      val merged = new MergedCursor(sources, scan => openScans.remove(scan))
      openScans.add(merged)
      merged
    }
  }

  private def prefixScan(prefix: Array[Byte], upper: Array[Byte]): Cursor = {
    val iterator = Option(idleIterators.pollLast()).getOrElse(reader.db.newIterator(reader.family, reader.readOptions))
    prefixes.recording(prefix, rowsOf(iterator, prefix, upper, idleIterators.add(_)))
  }

  private def rangeScan(lower: Array[Byte], upper: Array[Byte], whole: Boolean): Cursor = {
    val iterator = reader.db.newIterator(reader.family, if (whole) reader.scanOptions else reader.rangeOptions)
    rowsOf(iterator, lower, upper, _.close())
  }

  private def rowsOf(
      iterator: RocksIterator, lower: Array[Byte], upper: Array[Byte], release: RocksIterator => Unit): Cursor =
    new RocksCursor[RocksIterator](iterator, _.key, _.value, lower, upper, release, onDamage)

  /** Records that a scan has just shown `key`, so that its removal needs no look-up. */
  def remember(key: Array[Byte]): Unit =
    if (!isComplete) scanned(ByteMap.hash(key, key.length) & (scanned.length - 1)) = key

  /** Stops counting rows of a state that is dropped by this transaction. */
  def drop(state: Int): Unit = droppedStates += state
  def counts(state: Int): Boolean = !droppedStates.contains(state)

  def seal(writer: DeltaWriter, name: String): Option[SealedDelta] =
    if (writes.isEmpty) {
      None
    } else {
      Files.createDirectories(begun.staging)
      Some(writer.write(begun.staging.resolve(name), begun.markerKey, begun.nextMarkerValue, writes))
    }

  /** What Python workers have written in this transaction, once it is committed. */
  @volatile var workerRows: CommitReport.WorkerRows = CommitReport.WorkerRows(0, 0)

  /** The id of the commit, as Spark's commit log keeps it. */
  var committedId: String = _

  /** Records that the writes are durable: they are not spilled any more, and the near cache may show them. `states` are
    * those of the new version. Rows that Python workers have written are not here.
    */
  def committed(id: String, states: JsonNode): Unit = {
    committedId = id
    hasWorkers = Transaction.haveKeyed(states)
    if (hasWorkers) writes.complete(false)
    writes.seal()
    isCommitted = true
  }

  /** Releases every resource; a second call does nothing. */
  def close(): Unit = if (!closed) {
    openScans.toSeq.foreach(_.close())
    closed = true
    val unchanged = writes.isEmpty
    val rows = writes.close()
    if (lent != null) {
      if (isCommitted) {
        cache.giveBack(rows, begun.nextTag)
      } else if (unchanged) {
        cache.giveBack(rows, begun.tag)
      } else {
        cache.discard()
        residence.clear()
      }
    }
    idleIterators.forEach(_.close())
    idleIterators.clear()
    val isOfUse = !isComplete && (hasRead || !hasWorkers)
    if (view != null) readers.giveBack(view, reader => isOfUse && keepReader(reader))
    onClose(hasRead)
  }

  /** Fails if the transaction has ended, because others use its readers and codecs then. */
  def checkOpen(): Unit =
    if (closed) throw CkptErrors.lifecycle(s"Transaction ${begun.number} on version ${begun.version} has ended.")

  private def entryForWrite(key: Array[Byte], length: Int): Int = {
    val hash = ByteMap.hash(key, length)
    val known = findOrTakeAll(key, length, hash)
    if (known >= 0) known
    else writes.insert(key, length, hash, !writes.isComplete && existsInBase(key, length, hash))
  }

  /** The entry of a key in memory. Takes all rows there first if the store is to have them there. */
  private def findOrTakeAll(key: Array[Byte], length: Int, hash: Int): Int = {
    val known = writes.find(key, length, hash)
    if (known < 0 && canTakeAll) {
      takeAll()
      writes.find(key, length, hash)
    } else {
      known
    }
  }

  /** Whether all rows are in memory. Takes them there if the store is to have them there. */
  private def hasAll: Boolean = writes.isComplete || canTakeAll && takeAll()

  private def canTakeAll: Boolean = !writes.isComplete && !hasWorkers && writes.canComplete

  /** Reads all rows of the base version into memory; false if there is no room for them. */
  private def takeAll(): Boolean = writes.expectAll(begun.states.elements.asScala.map(_.get("rows").asLong).sum) && {
    val started = System.nanoTime
    val rows = reader.db.newIterator(reader.family, reader.scanOptions)
    var isRead = false
    try {
      rows.seekToFirst()
      while (rows.isValid && writes.isComplete) {
        takeRow(rows)
        rows.next()
      }
      rows.status()
      isRead = true
    } catch {
      case failure: RocksDBException =>
        onDamage(failure)
        throw failure
    } finally {
      rows.close()
      if (!isRead) writes.complete(false)
      loadMs += (System.nanoTime - started) / 1000000
    }
    writes.isComplete
  }

  /** Takes a row of the base version into memory, unless a row with its key is there. */
  private def takeRow(rows: RocksIterator): Unit = {
    var length = RocksRows.key(rows, keyScratch)
    if (length > keyScratch.length) {
      keyScratch = new Array[Byte](length * 2)
      length = RocksRows.key(rows, keyScratch)
    }
    val hash = ByteMap.hash(keyScratch, length)
    val isMarker = Bytes.areEqual(keyScratch, 0, length, begun.markerKey, 0, begun.markerKey.length)
    if (!isMarker && writes.map.find(keyScratch, length, hash) < 0) {
      var size = RocksRows.value(rows, scratch)
      if (size > scratch.length) {
        scratch = new Array[Byte](size)
        size = RocksRows.value(rows, scratch)
      }
      writes.remember(keyScratch, length, hash, scratch, size)
      writes.keepToBudget()
    }
  }

  private def existsInBase(key: Array[Byte], length: Int, hash: Int): Boolean = {
    val shown = scanned(hash & (scanned.length - 1))
    if (shown != null && Bytes.areEqual(shown, 0, shown.length, key, 0, length)) {
      true
    } else if (prefixes.cover(key, length)) {
      false
    } else {
      existenceReads += 1
      readDatabase(key, length) >= 0
    }
  }

  /** Takes a row of the base version into memory, or remembers that there is none. */
  private def load(key: Array[Byte], length: Int, hash: Int): Int = {
    val size = readDatabase(key, length)
    writes.remember(key, length, hash, if (size < 0) null else scratch, size)
  }

  /** Reads a row of the base version into `scratch`; returns its size, or -1 if there is none. */
  private def readDatabase(key: Array[Byte], length: Int): Int =
    try {
      val size = reader.db.get(reader.family, reader.readOptions, key, 0, length, scratch, 0, scratch.length)
      if (size > scratch.length) {
        scratch = new Array[Byte](size)
        reader.db.get(reader.family, reader.readOptions, key, 0, length, scratch, 0, size)
      } else {
        size
      }
    } catch {
      case failure: RocksDBException =>
        onDamage(failure)
        throw failure
    }
}

private[ckpt] object Transaction {
  private final val RememberedScans = 256

  def haveKeyed(states: JsonNode): Boolean =
    states.elements.asScala.exists(state => KeyCodec.isKeyed(state.get("number").asInt))
}
