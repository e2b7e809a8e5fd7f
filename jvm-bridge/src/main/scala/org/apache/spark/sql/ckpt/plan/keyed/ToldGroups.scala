package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.{Partition, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.ckpt.minor.plans.RealTime
import org.apache.spark.sql.ckpt.settings.{OptionTable, Settings}
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.state.StateStoreConf

/** An operator that tells the Python workers of its tasks which operators on groups its query has, and the query's
  * options.
  *
  * One task can have several of them, each with a worker of its own, where Spark needs no exchange between them. A worker
  * finds its own operator by the name of its function.
  */
private[ckpt] trait ToldGroups extends TicketHolder {
  override protected def doExecute(): RDD[InternalRow] = {
    val told = ToldGroups.toldTo(this)
    told.foreach { case (key, value) => sparkContext.setLocalProperty(key, value) }
    new ToldGroups.ToldRows(super.doExecute(), told)
  }
}

private[ckpt] object ToldGroups {

  /** The local property of a task that has one line for each operator of its query that is a Python function on groups:
    * the operator's number; the clocks of the batch, in ms: the watermark, the processing time, and the event time up to
    * which a row is late (`-` without a watermark); `live` in real-time mode, else `-`; and the function's name.
    */
  private final val Property = "ckpt.operators"

  private val OfPlan = TreeNodeTag[String]("ckpt.operators")

  /** Local properties, null for one that a task must not have. They are the same for all operators of a query. */
  private type Told = Seq[(String, String)]

  private def toldTo(group: ToldGroups): Told =
    (Property -> group.getTagValue(OfPlan).getOrElse("")) +: optionsOf(group)

  /** What the stores of the query get as their options: see `CkptStateStoreProvider.open`. */
  private def optionsOf(group: ToldGroups): Told = {
    val conf = group.session.sessionState.conf
    if (CkptStateStoreProvider.isChosen(conf)) {
      val options = Settings.from(new StateStoreConf(conf).sqlConfs).options
      OptionTable.keys.map(key => (OptionTable.Prefix + key) -> options.get(key).orNull)
    } else Nil
  }

  /** The rows of an operator, whose tasks are told first.
    *
    * A job has the local properties of the thread that starts it. A foreachBatch function may read its frame in a thread
    * without them, or in a session with other options. Spark 3.5 sends a worker the properties of its task while later
    * operators of the task begin, and none may be new by then. An RDD computes its parents first: so what is set here is
    * set before any worker begins.
    */
  private final class ToldRows(rows: RDD[InternalRow], told: Told) extends RDD[InternalRow](rows) {
    override protected def getPartitions: Array[Partition] = firstParent[InternalRow].partitions

    override def compute(split: Partition, context: TaskContext): Iterator[InternalRow] = {
      val properties = context.getLocalProperties
      told.foreach {
        case (key, null) => properties.remove(key)
        case (key, value) => properties.setProperty(key, value)
      }
      firstParent[InternalRow].iterator(split, context)
    }
  }

  /** Lets each such operator of a batch's plan know all of them. */
  object Tell extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
      val groups = plan.collect { case group: FlatMapGroupsInPandasWithStateExec => group }
      val told = groups.flatMap(line).mkString("\n")
      groups.foreach(_.setTagValue(OfPlan, told))
      plan
    }

    private def line(group: FlatMapGroupsInPandasWithStateExec): Option[String] = group.stateInfo.map { info =>
      val clocks = Seq(
        group.eventTimeWatermarkForEviction, group.batchTimestampMs, group.eventTimeWatermarkForLateEvents)
      val pace = if (RealTime.isIn(group)) "live" else "-"
      s"${info.operatorId} ${clocks.map(_.fold("-")(_.toString)).mkString(" ")} $pace ${KeyedOperator.nameOf(group.functionExpr)}"
    }
  }
}
