package org.apache.spark.sql.ckpt.rows

import java.util.Arrays

import org.rocksdb.{AbstractRocksIterator, RocksDBException, RocksIteratorInterface}

import org.apache.spark.sql.ckpt.minor.codec.Bytes

/** A position in one sorted source of rows: the database, a spilled run, or the write set in memory. */
private[ckpt] trait Cursor {
  def valid: Boolean
  def key: Array[Byte]
  def deleted: Boolean

  /** Whether the base version has this key. */
  def wasThere: Boolean

  /** The value lies in `valueBase` from `valueFrom`, `valueLength` long. */
  def valueBase: Array[Byte]
  def valueFrom: Int
  def valueLength: Int
  def advance(): Unit
  def close(): Unit
}

/** A cursor at the position of another one. */
private[ckpt] trait ForwardingCursor extends Cursor {
  protected def row: Cursor

  override def key: Array[Byte] = row.key
  override def deleted: Boolean = row.deleted
  override def wasThere: Boolean = row.wasThere
  override def valueBase: Array[Byte] = row.valueBase
  override def valueFrom: Int = row.valueFrom
  override def valueLength: Int = row.valueLength
}

/** Written entries of a map, with their values at the beginning of the scan; later writes do not change them. */
private[ckpt] final class MapCursor(
    map: ByteMap, ranges: Array[SortedEntries.Range], onClose: Cursor => Unit = _ => ()) extends Cursor {
  private val snapshot = map.snapshot()
  private val at = ranges.map(_.from)
  private val order = ranges.indices.toArray // of unfinished ranges, by their present keys
  private var left = 0
  private var currentKey: Array[Byte] = _
  ranges.indices.foreach { range =>
    left += 1
    settle(left - 1, -1)
  }
  load()

  override def valid: Boolean = left > 0
  override def key: Array[Byte] = currentKey
  override def deleted: Boolean = !snapshot.hasValue
  override def valueBase: Array[Byte] = snapshot.valueSlab
  override def valueFrom: Int = snapshot.valueOffset
  override def valueLength: Int = snapshot.valueLength
  override def wasThere: Boolean = map.wasInBase(entry)

  override def close(): Unit = {
    left = 0
    snapshot.close()
    onClose(this)
  }

  override def advance(): Unit = {
    step()
    load()
  }

  private def word(range: Int): Long = ranges(range).run(at(range))
  private def entry: Int = word(order(0)).toInt

  private def load(): Unit = {
    if (left > 0) snapshot.at(entry)
    currentKey = if (left > 0) map.key(entry) else null
  }

  private def step(): Unit = {
    val range = order(0)
    at(range) += 1
    if (at(range) == ranges(range).until) {
      left -= 1
      System.arraycopy(order, 1, order, 0, left)
    } else {
      settle(0, 1)
    }
  }

  /** Moves the range at `start` of the order in the given direction to its place. */
  private def settle(start: Int, direction: Int): Unit = {
    val range = order(start)
    var place = start
    var next = place + direction
    while (next >= 0 && next < left && SortedEntries.compare(map, word(order(next)), word(range)) * direction < 0) {
      order(place) = order(next)
      place = next
      next += direction
    }
    order(place) = range
  }
}

/** All rows of one state of a complete map at the beginning of the scan, in no order. */
private[ckpt] final class StateCursor(map: ByteMap, state: Int, onClose: Cursor => Unit) extends Cursor {
  private val snapshot = map.snapshot()
  private val until = map.size
  private var at = -1
  private var currentKey: Array[Byte] = _
  advance()

  override def valid: Boolean = at < until
  override def deleted: Boolean = false
  override def wasThere: Boolean = map.wasInBase(at)
  override def valueBase: Array[Byte] = snapshot.valueSlab
  override def valueFrom: Int = snapshot.valueOffset
  override def valueLength: Int = snapshot.valueLength

  override def key: Array[Byte] = {
    if (currentKey == null) currentKey = map.key(at)
    currentKey
  }

  override def advance(): Unit = if (valid) {
    currentKey = null
    at += 1
    while (valid && !isRow) at += 1
  }

  private def isRow: Boolean = map.keyState(at) == state && {
    snapshot.at(at)
    snapshot.hasValue
  }

  override def close(): Unit = {
    at = until
    snapshot.close()
    onClose(this)
  }
}

/** Rows of a map at the beginning of the scan. */
private[ckpt] final class MemoryCursor(map: ByteMap, entries: Array[Int], onClose: Cursor => Unit = _ => ())
  extends Cursor {
  private val snapshot = map.snapshot()
  private var at = 0
  private var currentKey: Array[Byte] = _
  load()

  override def valid: Boolean = at < entries.length
  override def key: Array[Byte] = currentKey
  override def deleted: Boolean = !snapshot.hasValue
  override def wasThere: Boolean = map.wasInBase(entries(at))
  override def valueBase: Array[Byte] = snapshot.valueSlab
  override def valueFrom: Int = snapshot.valueOffset
  override def valueLength: Int = snapshot.valueLength

  override def advance(): Unit = {
    at += 1
    load()
  }

  override def close(): Unit = {
    at = entries.length
    snapshot.close()
    onClose(this)
  }

  private def load(): Unit = if (valid) {
    snapshot.at(entries(at))
    currentKey = map.key(entries(at))
  }
}

/** Rows of a RocksDB iterator below `upper` (exclusive; null: to the end). `release` gets the iterator back. A
  * failure to read is passed to `onDamage` and raised.
  */
private[ckpt] class RocksCursor[I <: AbstractRocksIterator[_]](
    iterator: I, keyOf: I => Array[Byte], valueOf: I => Array[Byte], lower: Array[Byte], upper: Array[Byte],
    release: I => Unit, onDamage: RocksDBException => Unit = _ => ()) extends Cursor {
  private var currentKey: Array[Byte] = _
  private var currentValue: Array[Byte] = _
  private var closed = false
  iterator.asInstanceOf[RocksIteratorInterface].seek(lower)
  load()

  override def valid: Boolean = currentKey != null
  override def key: Array[Byte] = currentKey
  override def deleted: Boolean = false
  override def wasThere: Boolean = true
  override def valueBase: Array[Byte] = currentValue
  override def valueFrom: Int = 0
  override def valueLength: Int = currentValue.length

  override def advance(): Unit = if (!closed) {
    iterator.next()
    load()
  }

  override def close(): Unit = if (!closed) {
    closed = true
    currentKey = null
    release(iterator)
  }

  private def load(): Unit = {
    if (iterator.isValid) {
      currentKey = keyOf(iterator)
      if (upper != null && Bytes.compareUnsigned(currentKey, upper) >= 0) currentKey = null
      else currentValue = valueOf(iterator)
    } else {
      currentKey = null
      try iterator.status()
      catch {
        case failure: RocksDBException =>
          onDamage(failure)
          throw failure
      }
    }
  }
}

/** The union of sorted sources; for equal keys the newest source's row counts (sources are given newest first). */
private[ckpt] final class MergedCursor(sources: Array[Cursor], onClose: MergedCursor => Unit)
  extends ForwardingCursor {
  private var current: Cursor = _
  choose()

  override protected def row: Cursor = current
  override def valid: Boolean = current != null

  override def close(): Unit = {
    current = null
    sources.foreach(_.close())
    onClose(this)
  }

  override def advance(): Unit = if (current != null) {
    val passed = current.key
    var i = 0
    while (i < sources.length) {
      val source = sources(i)
      if (source.valid && Arrays.equals(source.key, passed)) source.advance()
      i += 1
    }
    choose()
  }

  private def choose(): Unit = {
    current = null
    var i = 0
    while (i < sources.length) {
      val source = sources(i)
      if (source.valid && (current == null || Bytes.compareUnsigned(source.key, current.key) < 0)) current = source
      i += 1
    }
  }
}
