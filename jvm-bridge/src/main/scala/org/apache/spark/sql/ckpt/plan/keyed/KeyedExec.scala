package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.BasePredicate
import org.apache.spark.sql.catalyst.plans.logical.ProcessingTimeTimeout
import org.apache.spark.sql.ckpt.minor.{FlatMapGroupsInPandasWithStateExec, NoTimeout, StateManager}
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsWithStateExecHelper.createStateManager
import org.apache.spark.sql.ckpt.store.CkptStateStore
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.util.CompletionIterator

/** The keyed operator of a physical plan: Spark's operator, except that its output has the watermark of its input. */
private[ckpt] final class KeyedExec(@transient protected val spark: FlatMapGroupsInPandasWithStateExec)
  extends CopiedGroups(spark) with KeyedStateSchema with NamedProgress with ToldGroups {

  /** A batch that begins with state has no initial rows. */
  override protected def own(copied: FlatMapGroupsInPandasWithStateExec): FlatMapGroupsInPandasWithStateExec = {
    val child = InitialRows.keepInFirstBatch(copied.child, copied.stateInfo)
    new KeyedExec(if (child eq copied.child) copied else copied.copy(child = child))
  }

  /** A group's row has a column for a time-out even without timers: a program can add its first ones, or drop all.
    */
  override lazy val stateManager: StateManager =
    createStateManager(stateEncoder, shouldStoreTimestamp = true, stateFormatVersion)

  override def produceOutputWatermark(inputWatermarkMs: Long): Option[Long] = Some(inputWatermarkMs)

  /** Counts what the Python worker has written. */
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] = {
    if (isTimeoutEnabled) passTimeOutsOfOtherClock(store)
    val counts = (longMetric("numUpdatedStateRows"), longMetric("numRemovedStateRows"))
    val before = (counts._1.value, counts._2.value)
    val rows = super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
    CompletionIterator[InternalRow, Iterator[InternalRow]](
      rows,
      store match { // which has committed by then
        case own: CkptStateStore =>
          counts._1.set(before._1 + own.workerRows.put)
          counts._2.set(before._2 + own.workerRows.removed)
        case _ =>
      })
  }

  /** A time-out that an earlier program has set by the other clock says nothing by this one: Spark could let the group
    * wait for years. So the group is called at once, and sets its own time-out.
    */
  private def passTimeOutsOfOtherClock(store: StateStore): Unit = stateManager.getAllState(store).foreach { group =>
    val isSet = group.timeoutTimestamp != NoTimeout
    group.stateObj match {
      case clocks: Row if isSet && KeyedExec.isOfProcessing(clocks) != (timeoutConf == ProcessingTimeTimeout) =>
        stateManager.putState(store, group.keyRow, clocks, KeyedExec.Passed)
      case _ =>
    }
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

  /** A time-out that has passed by either clock. */
  private final val Passed = 0L

  /** Whether a group's state (GROUP_ROW of the Python side) was set where time-outs are those of processing time. */
  private def isOfProcessing(clocks: Row): Boolean = clocks.getLong(1) != 0

  /** The column with the event time of rows of which no late one is dropped before the operator. */
  final val TimeOfAll = "__ckpt_time_of_all"
}
