package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.{SparkException, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BasePredicate, PythonUDF, SortOrder, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.plans.logical.ProcessingTimeTimeout
import org.apache.spark.sql.ckpt.minor.{
  FlatMapGroupsInPandasWithStateExec,
  NoTimeout,
  StateManager,
  StatefulOperatorCustomMetric
}
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsWithStateExecHelper.{StateData, createStateManager}
import org.apache.spark.sql.ckpt.minor.plans.RealTime
import org.apache.spark.sql.ckpt.plan.keyed.worker.{ArrivingRows, ArrowWorker, LiveMeasures}
import org.apache.spark.sql.ckpt.store.CkptStateStore
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.types.{DataType, IntegerType}
import org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt
import org.apache.spark.util.CompletionIterator

/** The keyed operator of a physical plan: an operator of Spark's whose rows go to the Python worker as Arrow batches, and
  * whose output has the watermark of its input.
  *
  * Its own state has one row for each partition: the partition's clocks, which the worker gives in its last answer.
  */
private[ckpt] final class KeyedExec(@transient protected val spark: FlatMapGroupsInPandasWithStateExec)
  extends CopiedGroups(spark) with KeyedStateSchema with NamedProgress with ToldGroups {

  /** A batch that begins with state has no initial rows. */
  override protected def own(copied: FlatMapGroupsInPandasWithStateExec): FlatMapGroupsInPandasWithStateExec = {
    val child = InitialRows.keepInFirstBatch(copied.child, copied.stateInfo)
    new KeyedExec(if (child eq copied.child) copied else copied.copy(child = child))
  }

  /** The row of a partition has a column for a time-out even without timers: a program can add its first ones, or drop
    * all.
    */
  override lazy val stateManager: StateManager =
    createStateManager(stateEncoder, shouldStoreTimestamp = true, stateFormatVersion)

  /** All rows of a partition are of one group. */
  override def requiredChildOrdering: Seq[Seq[SortOrder]] = Seq(Nil)

  override def produceOutputWatermark(inputWatermarkMs: Long): Option[Long] = Some(inputWatermarkMs)

  override def customStatefulOperatorMetrics: Seq[StatefulOperatorCustomMetric] =
    if (isLive) LiveMeasures.declared else Nil

  /** Counts what the Python worker has written. */
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] = {
    val rows = super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
    CompletionIterator[InternalRow, Iterator[InternalRow]](
      rows,
      store match { // which has committed by then
        case own: CkptStateStore =>
          longMetric("numUpdatedStateRows") += own.workerRows.put
          longMetric("numRemovedStateRows") += own.workerRows.removed
        case _ =>
      })
  }

  override def createInputProcessor(store: StateStore): InputProcessor = new InputProcessor(store) {
    override def processNewData(rows: Iterator[InternalRow]): Iterator[InternalRow] = {
      val key = KeyedExec.keyOf(store.id.partitionId, getStateInfo.numPartitions)
      if (isLive || rows.hasNext || isTimeoutEnabled && isDue(stateManager.getState(store, key)))
        answers(store, key, rows, TaskContext.get())
      else Iterator.empty
    }

    /** The worker has seen to them with the rows. */
    override def processTimedOutState(): Iterator[InternalRow] = Iterator.empty

    override protected def callFunctionAndUpdateState(
        group: StateData, rows: Iterator[InternalRow], hasTimedOut: Boolean): Iterator[InternalRow] =
      throw SparkException.internalError("A keyed operator calls no function for a group.")
  }

  /** The worker's output. `key`: where the clocks are stored. */
  private def answers(
      store: StateStore, key: UnsafeRow, rows: Iterator[InternalRow], context: TaskContext): Iterator[InternalRow] = {
    val projection = UnsafeProjection.create(output, output)
    val numOutputRows = longMetric("numOutputRows")
    val worker = new ArrowWorker(functionExpr.asInstanceOf[PythonUDF], child.schema, pythonMetrics)
    val answered =
      if (isLive) {
        val arriving = new ArrivingRows(
          rows, context, ticks = timeoutConf == ProcessingTimeTimeout, new LiveMeasures(longMetric))
        worker.runLive(arriving, context, keep(store, key, _))
      } else worker.run(rows, context, keep(store, key, _))
    answered.map { row =>
      numOutputRows += 1
      projection(row)
    }
  }

  /** Whether rows come as long as the batch lasts. */
  private lazy val isLive = RealTime.isIn(this)

  override protected def doExecute(): RDD[InternalRow] = {
    isLive // tasks have no plan
    super.doExecute()
  }

  /** Puts the row of clocks; an operator without timers has none. */
  private def keep(store: StateStore, key: UnsafeRow, clocks: Array[Byte]): Unit =
    if (clocks.nonEmpty) {
      val row = new UnsafeRow(KeyedExec.ColumnsOfClocks)
      row.pointTo(clocks, clocks.length)
      store.put(key, row)
    }

  /** Whether a timer is due. A time-out that an earlier program has set by the other clock says nothing by this one. */
  private def isDue(group: StateData): Boolean =
    group.timeoutTimestamp != NoTimeout && {
      val isOfProcessing = timeoutConf == ProcessingTimeTimeout
      val now = if (isOfProcessing) batchTimestampMs else eventTimeWatermarkForEviction
      group.timeoutTimestamp < now.get || (group.stateObj match {
        case clocks: Row => KeyedExec.isOfProcessing(clocks) != isOfProcessing
        case _ => false
      })
    }

  /** The Python worker sees to late rows of a processor that takes them. */
  override def applyRemovingRowsOlderThanWatermark(
      rows: Iterator[InternalRow], isLate: BasePredicate): Iterator[InternalRow] =
    if (child.output.exists(_.name == KeyedExec.TimeOfAll)) rows
    else super.applyRemovingRowsOlderThanWatermark(rows, isLate)

  override def canEqual(other: Any): Boolean = other.isInstanceOf[KeyedExec]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode + 1
}

private[ckpt] object KeyedExec {

  /** The clocks and the time-out. */
  private final val ColumnsOfClocks = 2

  /** Whether a partition's row (GROUP_ROW of the Python side) was set where time-outs are those of processing time. */
  private def isOfProcessing(clocks: Row): Boolean = clocks.getLong(1) != 0

  /** The key of a partition's row: the smallest route that Spark places there (`find_routes` of the Python side). */
  private def keyOf(partition: Int, partitions: Int): UnsafeRow = {
    val route = Iterator.from(0).find(route => Math.floorMod(hashInt(route, Seed), partitions) == partition).get
    UnsafeProjection.create(Array[DataType](IntegerType))(InternalRow(route))
  }

  /** Of Spark's hash of rows. */
  private final val Seed = 42

  /** The column with the event time of rows of which no late one is dropped before the operator. */
  final val TimeOfAll = "__ckpt_time_of_all"
}
