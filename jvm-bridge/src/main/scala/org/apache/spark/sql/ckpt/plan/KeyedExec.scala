package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.TaskContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.Row
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.BasePredicate
import org.apache.spark.sql.catalyst.plans.logical.ProcessingTimeTimeout
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.ckpt.minor.{FlatMapGroupsInPandasWithStateExec, KeyedStateSchema, NoTimeout, StateManager}
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsWithStateExecHelper.createStateManager
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.util.CompletionIterator

/** Spark's operator, except that its output has the watermark of its input.
  *
  * Its constructor is that of the release of Spark: see `MinorKeyedExec`.
  */
private[ckpt] trait KeyedExec extends KeyedStateSchema with NamedProgress {

  /** The row of a group has a column for a time-out also without timers: a program can get its first ones, or lose all.
    */
  override lazy val stateManager: StateManager =
    createStateManager(stateEncoder, shouldStoreTimestamp = true, stateFormatVersion)

  override def produceOutputWatermark(inputWatermarkMs: Long): Option[Long] = Some(inputWatermarkMs)

  /** Tells the Python worker, which starts after this, up to which event time a row is late in this batch, and which
    * operators the query has.
    */
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] = {
    val properties = TaskContext.get().getLocalProperties
    eventTimeWatermarkForLateEvents.foreach(late => properties.setProperty(KeyedExec.LateMs, late.toString))
    properties.setProperty(KeyedExec.Operators, operators.mkString("\n"))
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

  private lazy val operators = getTagValue(KeyedExec.NamesOfAll).getOrElse(Nil)

  override protected def doExecute(): RDD[InternalRow] = {
    operators // tasks have no tags
    super.doExecute()
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

  /** The local property of a task that has the event time, in ms, up to which a row is late. */
  final val LateMs = "ckpt.lateMs"

  /** The local property of a task that has the names of all operators of its query that are Python functions on groups,
    * one a line.
    */
  final val Operators = "ckpt.operators"

  /** A time-out that has passed by either clock. */
  private final val Passed = 0L

  /** Whether a group's state (GROUP_ROW of the Python side) was set where time-outs are those of processing time. */
  private def isOfProcessing(clocks: Row): Boolean = clocks.getLong(1) != 0

  private val NamesOfAll = TreeNodeTag[Seq[String]]("ckpt.operators")

  /** Lets each keyed operator of a physical plan know the names of all. */
  object NameAll extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
      val names = plan.collect { case group: FlatMapGroupsInPandasWithStateExec =>
        KeyedOperator.nameOf(group.functionExpr)
      }
      plan.foreach {
        case keyed: KeyedExec => keyed.setTagValue(NamesOfAll, names)
        case _ =>
      }
      plan
    }
  }

  /** The column with the event time of rows of which no late one is dropped before the operator. */
  final val TimeOfAll = "__ckpt_time_of_all"
}
