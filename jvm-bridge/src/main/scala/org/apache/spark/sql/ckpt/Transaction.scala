package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path, Paths}
import java.util.Arrays

import scala.collection.mutable

import com.fasterxml.jackson.databind.JsonNode
import org.rocksdb.RocksIterator

/** What the state server answered to `begin`; the transaction lives in that `server` and nowhere else. */
private[ckpt] final class Begun(val server: StateServer, answer: JsonNode) {
  val number: Long = answer.get("txn").asLong
  val version: Long = answer.get("version").asLong
  val id: Option[String] = Option(Json.text(answer, "id"))
  val newId: String = answer.get("new_id").asText
  val path: String = answer.get("db").asText
  val live: Boolean = answer.get("live").asBoolean
  val staging: Path = Paths.get(answer.get("staging").asText)
  val markerKey: Array[Byte] = Json.bytes(answer, "marker_key")
  val markerValue: Array[Byte] = Json.bytes(answer, "marker_value")
  val nextMarkerValue: Array[Byte] = Json.bytes(answer, "next_marker_value")
  val partitions: Option[Int] =
    if (answer.hasNonNull("num_partitions")) Some(answer.get("num_partitions").asInt) else None
  val states: JsonNode = answer.get("states")
  val metrics: JsonNode = answer.path("metrics")

  /** The version and its id: what a view or a cache shows. */
  def tag: String = s"$version-${id.getOrElse("")}"
  def nextTag: String = s"${version + 1}-$newId"
}

/** One transaction's rows: reads of one version through a reader under the write set, and the sealed delta.
  *
  * A look-up leaves its value in `valueBase`, from `valueFrom`, `valueLength` long; those bytes never change.
  * Not thread-safe: callers hold its lock.
  */
private[ckpt] final class Transaction(
    val begun: Begun,
    val reader: Reader,
    readers: Readers,
    cache: NearCache,
    budget: MemoryBudget,
    keepReader: Reader => Boolean) {

  private val hasCache = cache.lease(begun.tag)
  private var cacheReturned = !hasCache
  private val writes = new WriteSet(begun.staging, readers.runOptions, budget)
  private val found = new NearCache.Found
  private val idleIterators = mutable.ArrayDeque.empty[RocksIterator]
  private val openScans = mutable.HashSet.empty[Cursor]
  private val scanned = new Array[Array[Byte]](Transaction.RememberedScans)
  private val droppedStates = mutable.HashSet.empty[Int]
  private var closed = false

  var valueBase: Array[Byte] = _
  var valueFrom: Int = 0
  var valueLength: Int = 0
  private var scratch = new Array[Byte](1 << 12)

  var loadMs = 0L
  var cacheHits = 0L
  var cacheMisses = 0L
  var existenceReads = 0L

  def spilledRuns: Int = writes.runs
  def writeSetBytes: Long = writes.bytes

  /** Looks `key` up; its value as this transaction sees it is in `valueBase` when the answer is true. */
  def get(key: Array[Byte], length: Int): Boolean = {
    checkOpen()
    val hash = ByteMap.hash(key, length)
    val entry = writes.find(key, length, hash)
    val map = writes.map
    if (entry >= 0 && map.isWritten(entry)) {
      val present = !map.isDeleted(entry)
      if (present) point(map.valueSlab(entry), map.valueOffset(entry), map.valueLength(entry))
      writes.spillWhenFull() // it may have come back from a spilled run
      present
    } else if (entry >= 0 && map.mark(entry) == WriteSet.NotInBase) {
      false
    } else {
      val present = readBase(key, length, hash)
      val seen = if (entry >= 0) entry else writes.map.insert(key, length, hash)
      writes.map.mark(seen, if (present) WriteSet.InBase else WriteSet.NotInBase)
      writes.spillWhenFull()
      present
    }
  }

  def put(key: Array[Byte], length: Int, base: AnyRef, offset: Long, size: Int): Unit = {
    val entry = entryForWrite(key, length)
    val first = !writes.map.isWritten(entry)
    writes.map.put(entry, base, offset, size)
    writes.written(entry, first)
  }

  def delete(key: Array[Byte], length: Int): Unit = {
    val entry = entryForWrite(key, length)
    val first = !writes.map.isWritten(entry)
    writes.map.delete(entry)
    writes.written(entry, first)
  }

  /** Rows of [lower, upper) as this transaction sees them now, in key order. The caller closes it. */
  def scan(state: Int, lower: Array[Byte], upper: Array[Byte], whole: Boolean): Cursor = {
    checkOpen()
    val iterator =
      if (whole) reader.db.newIterator(reader.family, reader.scanOptions)
      else idleIterators.removeLastOption().getOrElse(reader.db.newIterator(reader.family, reader.readOptions))
    val release: RocksIterator => Unit = if (whole || closed) _.close() else it => idleIterators.append(it)
    val base = new RocksCursor[RocksIterator](iterator, _.key, _.value, lower, upper, release)
    val sources = (writes.cursors(state, lower, upper, whole) :+ base).toArray
    val merged = new MergedCursor(sources, scan => openScans.remove(scan))
    openScans.add(merged)
    merged
  }

  /** Tells that a scan has just shown `key` from the base or the write set: a removal need not look again. */
  def remember(key: Array[Byte]): Unit = scanned(ByteMap.hash(key, key.length) & (scanned.length - 1)) = key

  /** Row counts of a state that ends with this transaction are of no use to anybody. */
  def drop(state: Int): Unit = droppedStates += state
  def counts(state: Int): Boolean = !droppedStates.contains(state)

  def seal(writer: DeltaWriter, name: String): Option[SealedDelta] =
    if (writes.isEmpty) {
      None
    } else {
      Files.createDirectories(begun.staging)
      Some(writer.write(begun.staging.resolve(name), begun.markerKey, begun.nextMarkerValue, writes))
    }

  /** Hands the cache on, showing the committed version. */
  def committed(): Unit = {
    writes.seal()
    if (!cacheReturned) handCacheOn()
  }

  private def handCacheOn(): Unit = {
    cacheReturned = true
    if (writes.runs == 0) {
      cache(writes.map)
      cache.giveBack(begun.nextTag)
    } else {
      cache.discard()
    }
  }

  /** Ends the use of every resource; a second call does nothing. */
  def close(): Unit = if (!closed) {
    openScans.toSeq.foreach(_.close())
    closed = true
    if (!cacheReturned) {
      cacheReturned = true
      cache.giveBack(begun.tag)
    }
    idleIterators.foreach(_.close())
    idleIterators.clear()
    writes.close()
    readers.giveBack(reader, keepReader(reader))
  }

  /** Fails when the transaction has ended: its readers and codecs belong to others. */
  def checkOpen(): Unit =
    if (closed) throw CkptErrors.lifecycle(s"transaction ${begun.number} on version ${begun.version} has ended")

  private def entryForWrite(key: Array[Byte], length: Int): Int = {
    val hash = ByteMap.hash(key, length)
    val entry = writes.findOrInsert(key, length, hash)
    if (writes.map.mark(entry) == WriteSet.Unknown) {
      writes.map.mark(entry, if (existsInBase(key, length, hash)) WriteSet.InBase else WriteSet.NotInBase)
    }
    entry
  }

  private def existsInBase(key: Array[Byte], length: Int, hash: Int): Boolean = {
    val shown = scanned(hash & (scanned.length - 1))
    if (shown != null && Arrays.equals(shown, 0, shown.length, key, 0, length)) {
      true
    } else {
      existenceReads += 1
      readBase(key, length, hash)
    }
  }

  private def readBase(key: Array[Byte], length: Int, hash: Int): Boolean =
    if (!cacheReturned && cache.find(key, length, hash, found)) {
      cacheHits += 1
      if (found.map.isDeleted(found.entry)) {
        false
      } else {
        pointAtCache()
        true
      }
    } else {
      cacheMisses += 1
      readDatabase(key, length, hash)
    }

  private def readDatabase(key: Array[Byte], length: Int, hash: Int): Boolean = {
    var size = reader.db.get(reader.family, reader.readOptions, key, 0, length, scratch, 0, scratch.length)
    if (size > scratch.length) {
      scratch = new Array[Byte](size)
      size = reader.db.get(reader.family, reader.readOptions, key, 0, length, scratch, 0, size)
    }
    if (size < 0) {
      false
    } else {
      if (!cacheReturned) {
        cache.put(key, length, hash, scratch, 0, size, found)
        pointAtCache()
      } else {
        point(Arrays.copyOf(scratch, size), 0, size)
      }
      true
    }
  }

  private def pointAtCache(): Unit =
    point(found.map.valueSlab(found.entry), found.map.valueOffset(found.entry), found.map.valueLength(found.entry))

  private def point(base: Array[Byte], from: Int, length: Int): Unit = {
    valueBase = base
    valueFrom = from
    valueLength = length
  }
}

private[ckpt] object Transaction {
  private final val RememberedScans = 256
}
