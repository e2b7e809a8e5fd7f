package org.apache.spark.sql.ckpt.store

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.codec.{Family, FamilySpec, KeyCodec, OrderedKeyCodec}
import org.apache.spark.sql.ckpt.minor.{KeyStateEncoderSpec, StateStoreIterator}
import org.apache.spark.sql.ckpt.minor.codec.{KeyEncoding, StoreErrors}
import org.apache.spark.sql.ckpt.minor.store.{MinorStateStore, ReportsCheckpointIds}
import org.apache.spark.sql.ckpt.transactions.{CommitReport, Transaction}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** One version of one store, which a task reads and from which it writes the next version.
  *
  * The read store and the write store that it is upgraded to are the same object and one transaction. The read side
  * continues to read lazily after the upgrade, so `release` ends nothing then. Resources live until the task ends,
  * because some operators read what they have committed. Every operation holds the transaction's lock: with
  * `spark.python.udf.pipelined.enabled` a second thread of the task reads state while the first writes it.
  */
private[ckpt] final class CkptStateStore(provider: ProvidedStore, txn: Transaction, writable: Boolean)
  extends MinorStateStore with ReportsCheckpointIds with Logging {
  import CkptStateStore._

  @volatile private var status: Status = Open
  @volatile private var canWrite = writable
  private var upgraded = false
  private var validated = false
  private var closed = false
  private val families = new OpenFamilies(provider.families, txn.begun)
  private var report: StateStoreMetrics = _

  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => end()))

  override def id: StateStoreId = provider.stateStoreId
  override def version: Long = txn.begun.version
  override def hasCommitted: Boolean = status == Committed
  override def allColumnFamilyNames: Set[String] = txn.synchronized(families.names)
  override def toString: String = s"CkptStateStore(${provider.served.label}, version $version)"

  /** What Python workers have written, once the store has committed. */
  private[ckpt] def workerRows: CommitReport.WorkerRows = txn.workerRows

  override private[ckpt] def canBecomeWritable(version: Long, id: Option[String]): Boolean =
    status == Open && !canWrite && version == this.version && (id.isEmpty || id == txn.begun.id)

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
    nonNull(key)
    readable("get", colFamilyName) match {
      case Some(family) if find(family, key) =>
        val value = family.values.decode(txn.valueBase, txn.valueFrom, txn.valueLength)
        validate(key, value)
        value
      case _ => null
    }
  }

  /** The present values of all keys, null for a key without a value. */
  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = txn.synchronized {
    if (keys == null) throw new IllegalStateException(s"Keys cannot be null ($this)")
    keys.map(get(_, colFamilyName)).iterator
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = txn.synchronized {
    nonNull(key)
    readable("keyExists", colFamilyName).exists(find(_, key))
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = txn.synchronized {
    nonNull(key)
    val family = described("valuesIterator", colFamilyName)
    multiple("valuesIterator", family)
    if (readable("valuesIterator", colFamilyName).isDefined && find(family, key)) {
      family.values.decodeAll(txn.valueBase, txn.valueFrom, txn.valueLength)
    } else {
      Iterator.empty
    }
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("iterator", colFamilyName, all = false)(wholeState)

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("iteratorWithMultiValues", colFamilyName, all = true)(wholeState)

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("prefixScan", colFamilyName, all = false)(prefix("prefixScan", _, prefixKey))

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("prefixScanWithMultiValues", colFamilyName, all = true)(prefix("prefixScanWithMultiValues", _, prefixKey))

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("rangeScan", colFamilyName, all = false)(range("rangeScan", _, startKey, endKey))

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("rangeScanWithMultiValues", colFamilyName, all = true)(range("rangeScanWithMultiValues", _, startKey, endKey))

  // ---- writes ---------------------------------------------------------------------------------------------------

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = txn.synchronized {
    requireWritable("put")
    nonNull(key)
    Predef.require(value != null, s"Cannot put a null value ($this): remove the key instead")
    val family = families.toWrite("put", colFamilyName)
    if (family.values.isRow) {
      val length = family.keys.encode(key)
      txn.put(
        family.keys.buffer, length, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, overwrites = true)
    } else {
      putBytes(family, key, family.values.encode(value))
    }
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = txn.synchronized {
    requireWritable("put")
    nonNull(key)
    nonNullValues("put", values)
    val family = families.toWrite("put", colFamilyName)
    multiple("put", family)
    putBytes(family, key, family.values.encodeAll(values))
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    Predef.require(value != null, s"Cannot merge a null value ($this)")
    mergeList(key, Array(value), colFamilyName)
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = txn.synchronized {
    requireWritable("merge")
    val family = families.toWrite("merge", colFamilyName)
    multiple("merge", family)
    nonNull(key)
    nonNullValues("merge", values)
    val length = family.keys.encode(key)
    txn.append(family.keys.buffer, length, family.values.encodeAll(values))
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = txn.synchronized {
    requireWritable("remove")
    nonNull(key)
    val family = families.toWrite("remove", colFamilyName)
    val length = family.keys.encode(key)
    txn.delete(family.keys.buffer, length)
  }

  /** Removes all keys in [beginKey, endKey) with one tombstone each: the SST of a delta holds no range tombstones. */
  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = txn.synchronized {
    requireWritable("deleteRange")
    if (beginKey == null) throw new IllegalStateException(s"Begin key cannot be null ($this)")
    if (endKey == null) throw new IllegalStateException(s"End key cannot be null ($this)")
    val family = families.toWrite("deleteRange", colFamilyName)
    if (KeyEncoding.orderedColumns(family.spec.encoder).isEmpty) {
      throw new IllegalStateException(
        s"deleteRange requires a RangeKeyScanStateEncoderSpec for ordered key encoding, but column family " +
          s"'$colFamilyName' of $this has another encoder.")
    }
    val bounds = range("deleteRange", family, Some(beginKey), Some(endKey))
    txn.deleteRange(family.number, bounds.lower, bounds.upper, bounds.whole)
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
    txn.synchronized(families.create(
        FamilySpec(
          colFamilyName, keySchema, valueSchema, keyStateEncoderSpec, useMultipleValuesPerKey, isInternal,
          provider.valueSchemas(colFamilyName))))
  }

  /** Removes the family's rows and retires its state number, also of a family that an earlier program stored. */
  override def removeColFamilyIfExists(colFamilyName: String): Boolean = txn.synchronized {
    provider.families.checkName("remove_col_family", colFamilyName, internal = false)
    requireWritable("remove_col_family")
    val dropped = families.drop(colFamilyName)
    dropped.flatten.foreach { state =>
      txn.deleteRange(state, KeyCodec.stateBound(state), KeyCodec.stateBound(state + 1), whole = true)
      txn.drop(state)
    }
    dropped.isDefined
  }

  // ---- the end --------------------------------------------------------------------------------------------------

  /** Commits; on return the new version survives the loss of this machine (as far as the remote place does). */
  override def commit(): Long = txn.synchronized {
    require(Open, "commit")
    if (!canWrite) throw CkptErrors.lifecycle(s"$this was opened for reading and cannot be committed.")
    families.settle()
    val outcome = provider.transactions.commit(txn)
    status = Committed
    report = outcome
    if (TaskContext.get() == null) close()
    provider.reportCommit(version + 1)
    version + 1
  }

  override def abort(): Unit = if (status == Open) {
    status = Aborted
    close()
    provider.served.abort(txn.begun)
  }

  /** Ends a store that only read; does nothing if the store was upgraded to a write store. */
  override def release(): Unit = if (!upgraded) abort()

  /** The metrics of the commit; before it, the number of rows of the base version. */
  override def metrics: StateStoreMetrics = txn.synchronized {
    if (report != null) report else CommitReport.beforeCommit(id, txn)
  }

  def committedIds: (Option[String], Option[String]) = {
    if (status != Committed) {
      throw StoreErrors.outOfOrder(s"Cannot get checkpointInfo without committing the store ($this is $status)")
    }
    if (provider.served.usesCheckpointIds) (Some(txn.committedId), txn.begun.id) else (None, None)
  }

  private def end(): Unit = {
    abort()
    close()
  }

  private def close(): Unit = txn.synchronized {
    if (!closed) {
      closed = true
      txn.close()
      families.close()
      if (hasCommitted && !txn.isComplete) provider.transactions.catchUpInBackground()
    }
  }

  // ---- pieces ---------------------------------------------------------------------------------------------------

  private def require(wanted: Status, operation: String): Unit = if (status != wanted) {
    throw StoreErrors.outOfOrder(s"Cannot $operation after $status")
  }

  private def nonNull(key: UnsafeRow): Unit =
    if (key == null) throw new IllegalStateException(s"Key cannot be null ($this)")

  private def nonNullValues(operation: String, values: Array[UnsafeRow]): Unit = {
    Predef.require(values != null, s"Cannot $operation a null value ($this)")
    Predef.require(!values.contains(null), s"Cannot $operation a null value in the array ($this)")
  }

  private def requireReadable(operation: String): Unit = {
    if (status == Aborted) require(Open, operation)
    txn.checkOpen()
  }

  private def requireWritable(operation: String): Unit = {
    require(Open, operation)
    if (!canWrite) throw CkptErrors.lifecycle(s"$operation: $this was opened for reading.")
    txn.checkOpen()
  }

  /** The family if this version has one of this name; None if it was named but never written. */
  private def readable(operation: String, name: String): Option[Family] = {
    requireReadable(operation)
    families.toRead(operation, name)
  }

  private def described(operation: String, name: String): Family = {
    requireReadable(operation)
    families.described(operation, name)
  }

  private def multiple(operation: String, family: Family): Unit = if (!family.values.multiple) {
    throw new IllegalStateException(
      s"$operation requires an encoder that supports multiple values for a single key: column family " +
        s"'${family.spec.name}' of $this holds one value for each key.")
  }

  private def find(family: Family, key: UnsafeRow): Boolean = {
    val length = family.keys.encode(key)
    txn.get(family.keys.buffer, length)
  }

  private def putBytes(family: Family, key: UnsafeRow, bytes: Array[Byte]): Unit = {
    val length = family.keys.encode(key)
    // Values of one key are decoded when they are asked for, from the bytes that were there at the look-up.
    txn.put(family.keys.buffer, length, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, overwrites = false)
  }

  private def wholeState(family: Family): Bounds = Bounds(family.keys.stateStart, family.keys.stateEnd, whole = true)

  private def prefix(operation: String, family: Family, key: UnsafeRow): Bounds = {
    Predef.require(
      family.keys.supportsPrefixScan,
      s"$operation requires setting prefix key: the key encoder of '${family.spec.name}' of $this has no prefix " +
        "columns.")
    val length = family.keys.encodePrefix(key)
    val lower = java.util.Arrays.copyOf(family.keys.buffer, length)
    Bounds(lower, KeyCodec.behind(lower, length), whole = false)
  }

  private def range(operation: String, family: Family, start: Option[UnsafeRow], end: Option[UnsafeRow]): Bounds =
    family.keys match {
      case ordered: OrderedKeyCodec if ordered.supportsRangeScan =>
        def bound(key: UnsafeRow): Array[Byte] = {
          val length = ordered.encodeBound(key)
          java.util.Arrays.copyOf(ordered.buffer, length)
        }
        Bounds(
          start.map(bound).getOrElse(ordered.stateStart), end.map(bound).getOrElse(ordered.stateEnd),
          whole = start.isEmpty && end.isEmpty)
      case _ =>
        throw new IllegalArgumentException(
          s"$operation requires an encoder that supports range scanning: the key encoder of '${family.spec.name}' of " +
            s"$this keeps no order.")
    }

  /** The present rows of a range; later writes do not change them. With `all`, one pair for each value of a key. The
    * pair is reused, its rows are not.
    */
  private def scan(operation: String, name: String, all: Boolean)(
      boundsOf: Family => Bounds): StateStoreIterator[UnsafeRowPair] = txn.synchronized {
    val family = described(operation, name)
    if (all) multiple(operation, family)
    val bounds = boundsOf(family)
    if (readable(operation, name).isEmpty) {
      new StateStoreIterator[UnsafeRowPair](Iterator.empty, () => ())
    } else {
      val cursor = txn.scan(family.number, bounds.lower, bounds.upper, bounds.whole)
      val iterator = new RowIterator(cursor, family, txn, all)
      new StateStoreIterator[UnsafeRowPair](
        iterator.map { pair =>
          validate(pair.key, pair.value)
          pair
        },
        () => txn.synchronized(cursor.close()))
    }
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
