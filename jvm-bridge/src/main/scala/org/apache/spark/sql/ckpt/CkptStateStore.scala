package org.apache.spark.sql.ckpt

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** One version of one store as a task reads it and writes the next one.
  *
  * `getReadStore` and the write store it is upgraded to are the same object and one transaction: the read side goes on
  * reading lazily behind the upgrade, so its `release` ends nothing then. Resources live until the task ends, for some
  * operators read what they have committed. Every operation holds the transaction's lock: with
  * `spark.python.udf.pipelined.enabled` a second thread of the task reads state while the first writes it.
  */
private[ckpt] final class CkptStateStore(provider: CkptStateStoreProvider, txn: Transaction, writable: Boolean)
  extends StateStore with Logging {
  import CkptStateStore._

  @volatile private var status: Status = Open
  @volatile private var canWrite = writable
  private var upgraded = false
  private var validated = false
  private var closed = false
  private val families = mutable.HashMap.empty[String, Family]
  private val dropped = mutable.HashSet.empty[String]
  private val everDropped = mutable.HashSet.empty[String]
  private val codecs = provider.families.takeCodecs()
  private var report: StateStoreMetrics = _

  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => end()))

  override def id: StateStoreId = provider.stateStoreId
  override def version: Long = txn.begun.version
  override def hasCommitted: Boolean = status == Committed
  override def allColumnFamilyNames: Set[String] = provider.families.names(txn.begun) -- dropped
  override def toString: String = s"CkptStateStore(${provider.label}, version $version)"

  private[ckpt] def creator: CkptStateStoreProvider = provider

  /** Makes a read store the write store of the same transaction. */
  private[ckpt] def upgrade(): StateStore = {
    require(Open, "upgrade")
    provider.checkPartitions(txn.begun)
    canWrite = true
    upgraded = true
    this
  }

  // ---- reads ----------------------------------------------------------------------------------------------------

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = txn.synchronized {
    val family = readable("get", colFamilyName)
    nonNull(key)
    if (!find(family, key)) {
      null
    } else {
      val value = family.values.decode(txn.valueBase, txn.valueFrom, txn.valueLength)
      validate(key, value)
      value
    }
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, colFamilyName))

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = txn.synchronized {
    val family = readable("keyExists", colFamilyName)
    nonNull(key)
    find(family, key)
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = txn.synchronized {
    val family = readable("valuesIterator", colFamilyName)
    multiple("valuesIterator", family)
    nonNull(key)
    if (find(family, key)) {
      family.values.decodeAll(txn.valueBase, txn.valueFrom, txn.valueLength)
    } else {
      Iterator.empty
    }
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = txn.synchronized {
    val family = readable("iterator", colFamilyName)
    rows(family, wholeState(family), all = false)
  }

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = txn.synchronized {
    val family = readable("iteratorWithMultiValues", colFamilyName)
    multiple("iteratorWithMultiValues", family)
    rows(family, wholeState(family), all = true)
  }

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    txn.synchronized {
      val family = readable("prefixScan", colFamilyName)
      rows(family, prefix("prefixScan", family, prefixKey), all = false)
    }

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = txn.synchronized {
    val family = readable("prefixScanWithMultiValues", colFamilyName)
    multiple("prefixScanWithMultiValues", family)
    rows(family, prefix("prefixScanWithMultiValues", family, prefixKey), all = true)
  }

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = txn.synchronized {
    val family = readable("rangeScan", colFamilyName)
    rows(family, range("rangeScan", family, startKey, endKey), all = false)
  }

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = txn.synchronized {
    val family = readable("rangeScanWithMultiValues", colFamilyName)
    multiple("rangeScanWithMultiValues", family)
    rows(family, range("rangeScanWithMultiValues", family, startKey, endKey), all = true)
  }

  // ---- writes ---------------------------------------------------------------------------------------------------

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = txn.synchronized {
    val family = writableFamily("put", colFamilyName)
    nonNull(key)
    if (value == null) throw CkptErrors.invalidInput("put: the value is null", "remove the key instead")
    if (family.values.multiple) {
      putBytes(family, key, family.values.append(null, 0, 0, Array(value)))
    } else {
      val length = family.keys.encode(key)
      txn.put(family.keys.buffer, length, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
    }
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = txn.synchronized {
    val family = writableFamily("putList", colFamilyName)
    multiple("putList", family)
    nonNull(key)
    nonNull(values)
    putBytes(family, key, family.values.append(null, 0, 0, values))
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    mergeList(key, Array(value), colFamilyName)

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = txn.synchronized {
    val family = writableFamily("merge", colFamilyName)
    multiple("merge", family)
    nonNull(key)
    nonNull(values)
    val bytes =
      if (find(family, key)) {
        family.values.append(txn.valueBase, txn.valueFrom, txn.valueLength, values)
      } else {
        family.values.append(null, 0, 0, values)
      }
    putBytes(family, key, bytes)
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = txn.synchronized {
    val family = writableFamily("remove", colFamilyName)
    nonNull(key)
    val length = family.keys.encode(key)
    txn.delete(family.keys.buffer, length)
  }

  /** Removes all keys in [beginKey, endKey) by one tombstone each: the SST of a delta can hold no range tombstone. */
  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = txn.synchronized {
    val family = writableFamily("deleteRange", colFamilyName)
    deleteAll(family.number, range("deleteRange", family, Some(beginKey), Some(endKey)))
  }

  // ---- column families ------------------------------------------------------------------------------------------

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit =
    registerColFamily(colFamilyName, keySchema, valueSchema, keyStateEncoderSpec, useMultipleValuesPerKey, isInternal)

  override def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    require(Open, "createColFamilyIfAbsent")
    dropped -= colFamilyName
    provider.families.register(
      FamilySpec(colFamilyName, keySchema, valueSchema, keyStateEncoderSpec, useMultipleValuesPerKey, isInternal))
  }

  /** Removes the family's rows and retires its state number; a family stored by an earlier program counts, too. */
  override def removeColFamilyIfExists(colFamilyName: String): Boolean = txn.synchronized {
    require(Open, "remove_col_family")
    provider.families.checkName("remove_col_family", colFamilyName, internal = false)
    val number = families.get(colFamilyName).map(_.number)
      .orElse(provider.families.storedNumber(txn.begun, colFamilyName).filterNot(_ =>
          everDropped.contains(colFamilyName)))
    number.foreach { state =>
      deleteAll(state, Bounds(KeyCodec.stateBound(state), KeyCodec.stateBound(state + 1), whole = true))
      provider.families.dropState(txn.begun, colFamilyName)
      txn.drop(state)
      dropped += colFamilyName
      everDropped += colFamilyName
    }
    families.remove(colFamilyName)
    provider.families.unregister(colFamilyName) || number.isDefined
  }

  // ---- the end --------------------------------------------------------------------------------------------------

  /** After return the new version survives the loss of this machine (as far as the remote place does). */
  override def commit(): Long = txn.synchronized {
    require(Open, "commit")
    if (!canWrite) throw CkptErrors.lifecycle(s"$this was opened for reading and cannot be committed")
    val outcome = provider.commit(txn)
    txn.committed()
    status = Committed
    report = outcome
    if (TaskContext.get() == null) close()
    provider.reportCommit(version + 1)
    version + 1
  }

  override def abort(): Unit = if (status == Open) {
    status = Aborted
    close()
    provider.abort(txn.begun)
  }

  /** Ends a store that only read; does nothing when the transaction went on as a write store. */
  override def release(): Unit = if (!upgraded) abort()

  override def metrics: StateStoreMetrics = {
    if (report == null) throw CkptErrors.lifecycle(s"$this has no metrics before its commit")
    report
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    if (status != Committed) throw CkptErrors.lifecycle(s"$this has no checkpoint before its commit")
    val ids = provider.usesCheckpointIds
    StateStoreCheckpointInfo(
      id.partitionId, version + 1, if (ids) Some(txn.begun.newId) else None, if (ids) txn.begun.id else None)
  }

  private def end(): Unit = {
    abort()
    close()
  }

  private def close(): Unit = txn.synchronized {
    if (!closed) {
      closed = true
      txn.close()
      provider.families.giveBackCodecs(codecs)
      if (hasCommitted) provider.followBehind()
    }
  }

  // ---- pieces ---------------------------------------------------------------------------------------------------

  private def require(wanted: Status, operation: String): Unit = if (status != wanted) {
    throw StateStoreErrors.stateStoreOperationOutOfOrder(s"Cannot $operation after $status")
  }

  private def nonNull(key: AnyRef): Unit =
    if (key == null) throw CkptErrors.invalidInput("the key or the values of a state operation are null", "")

  private def readable(operation: String, name: String): Family = {
    if (status == Aborted) require(Open, operation)
    txn.checkOpen()
    families.getOrElseUpdate(
      name, provider.families.family(operation, name, txn.begun, codecs, recreated = everDropped.contains(name)))
  }

  private def writableFamily(operation: String, name: String): Family = {
    require(Open, operation)
    if (!canWrite) throw CkptErrors.lifecycle(s"$operation: $this was opened for reading")
    readable(operation, name)
  }

  private def multiple(operation: String, family: Family): Unit = if (!family.values.multiple) {
    throw CkptErrors.unsupported(operation, s"column family '${family.spec.name}' holds one value a key")
  }

  private def find(family: Family, key: UnsafeRow): Boolean = {
    val length = family.keys.encode(key)
    txn.get(family.keys.buffer, length)
  }

  private def putBytes(family: Family, key: UnsafeRow, bytes: Array[Byte]): Unit = {
    val length = family.keys.encode(key)
    txn.put(family.keys.buffer, length, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
  }

  private def wholeState(family: Family): Bounds = Bounds(family.keys.stateStart, family.keys.stateEnd, whole = true)

  private def prefix(operation: String, family: Family, key: UnsafeRow): Bounds = {
    if (!family.keys.supportsPrefixScan) {
      throw CkptErrors.unsupported(operation, s"the key encoder of '${family.spec.name}' has no prefix columns")
    }
    val length = family.keys.encodePrefix(key)
    val lower = java.util.Arrays.copyOf(family.keys.buffer, length)
    Bounds(lower, KeyCodec.behind(lower, length), whole = false)
  }

  private def range(operation: String, family: Family, start: Option[UnsafeRow], end: Option[UnsafeRow]): Bounds =
    family.keys match {
      case ordered: OrderedKeyCodec if ordered.supportsRangeScan || operation == "deleteRange" =>
        def bound(key: UnsafeRow): Array[Byte] = {
          val length = ordered.encodeBound(key)
          java.util.Arrays.copyOf(ordered.buffer, length)
        }
        Bounds(
          start.map(bound).getOrElse(ordered.stateStart), end.map(bound).getOrElse(ordered.stateEnd),
          whole = start.isEmpty && end.isEmpty)
      case _ =>
        throw CkptErrors.unsupported(operation, s"the key encoder of '${family.spec.name}' keeps no order")
    }

  private def deleteAll(state: Int, bounds: Bounds): Unit = {
    val cursor = txn.scan(state, bounds.lower, bounds.upper, bounds.whole)
    try {
      while (cursor.valid) {
        if (!cursor.deleted) {
          txn.remember(cursor.key)
          txn.delete(cursor.key, cursor.key.length)
        }
        cursor.advance()
      }
    } finally {
      cursor.close()
    }
  }

  /** Rows of a range; `all`: one pair for each of the values of a key. The pair is reused, its rows are not. */
  private def rows(family: Family, bounds: Bounds, all: Boolean): StateStoreIterator[UnsafeRowPair] = {
    val cursor = txn.scan(family.number, bounds.lower, bounds.upper, bounds.whole)
    val iterator = new RowIterator(cursor, family, txn, all)
    new StateStoreIterator[UnsafeRowPair](
      iterator.map { pair =>
        validate(pair.key, pair.value)
        pair
      },
      () => txn.synchronized(cursor.close()))
  }

  private def validate(key: UnsafeRow, value: UnsafeRow): Unit = if (!validated) {
    validated = true
    provider.validate(key, value)
  }
}

private[ckpt] object CkptStateStore {
  private[ckpt] sealed trait Status
  private case object Open extends Status { override def toString: String = "OPEN" }
  private case object Committed extends Status { override def toString: String = "COMMITTED" }
  private case object Aborted extends Status { override def toString: String = "ABORTED" }

  private final case class Bounds(lower: Array[Byte], upper: Array[Byte], whole: Boolean)
}

/** Pairs of rows under a cursor, deleted ones left out. */
private[ckpt] final class RowIterator(cursor: Cursor, family: Family, txn: Transaction, all: Boolean)
  extends Iterator[UnsafeRowPair] {
  private val pair = new UnsafeRowPair
  private var values: Iterator[UnsafeRow] = Iterator.empty
  private var key: UnsafeRow = _

  override def hasNext: Boolean = values.hasNext || txn.synchronized {
    txn.checkOpen()
    while (cursor.valid && (cursor.deleted || (all && cursor.valueLength == 0))) cursor.advance()
    if (!cursor.valid) cursor.close()
    cursor.valid
  }

  override def next(): UnsafeRowPair = txn.synchronized {
    if (!hasNext) throw new NoSuchElementException("no more rows")
    if (values.hasNext) {
      pair.withRows(key, values.next())
    } else {
      key = family.keys.decode(cursor.key)
      txn.remember(cursor.key)
      if (all) {
        values = family.values.decodeAll(cursor.valueBase, cursor.valueFrom, cursor.valueLength)
        cursor.advance()
        next()
      } else {
        val value = family.values.decode(cursor.valueBase, cursor.valueFrom, cursor.valueLength)
        cursor.advance()
        pair.withRows(key, value)
      }
    }
  }
}
