package org.apache.spark.sql.ckpt.plan.inputs

import org.apache.spark.sql.catalyst.plans.logical.{EventTimeWatermark, LogicalPlan}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.minor.{ErrorNotifier, EventTimeWatermarkExec, MicroBatchExecution, StreamExecution}
import org.apache.spark.sql.ckpt.minor.query.{QuerySession, SourceNames, WatermarkNodes}
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.internal.SQLConf

/** One input of a query's watermark: a `withWatermark`, wherever it is in the plan.
  *
  * `nodeId` changes with a restart, and `name` stays the same. `idleAfterMs` is None for an input that
  * always counts.
  */
private[ckpt] final case class WatermarkInput(nodeId: WatermarkNodes.Id, name: InputName, idleAfterMs: Option[Long])

/** The column of the event time, and the names that the user has given to the sources below. `number` tells inputs with
  * the same column and sources apart, by their order in the plan.
  */
private[ckpt] final case class InputName(column: String, sources: Seq[String], number: Int)

/** Leaves silent inputs out of the watermark, in queries with inputs that can be idle.
  *
  * `with_watermark` of the Python side marks the column of the event time below Spark's `withWatermark`, and not above.
  */
private[ckpt] object IdleInputs {

  /** The key in the metadata of a column by which an input that can be idle is known; its value is in milliseconds. */
  private final val Mark = "ckpt.idleAfterMs"

  /** A conf of the query's own session, the query's id: its tracker will be replaced. */
  private final val Followed = "spark.ckpt.internal.idleInputs"

  /** Must be called on the query's own thread, before it plans a batch. */
  def follow(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution if areIn(query.analyzedPlan) =>
      val field = classOf[MicroBatchExecution].getDeclaredField("errorNotifier")
      field.setAccessible(true)
      field.set(batches, new EachTrigger(batches, field.get(batches).asInstanceOf[ErrorNotifier]))
      QuerySession.of(query).conf.set(Followed, query.id.toString)
    case _ =>
  }

  /** Whether a query has inputs that may be idle. */
  def areIn(plan: LogicalPlan): Boolean = inputsOf(plan).exists(_.idleAfterMs.nonEmpty)

  /** The inputs of a query's analyzed plan, in its order. */
  def inputsOf(plan: LogicalPlan): Seq[WatermarkInput] = {
    val nodes = WatermarkNodes.of(plan)
    val names = nodes.map { case (_, node) => InputName(node.eventTime.name, sourcesOf(node), 0) }
    nodes.zip(names).zipWithIndex.map { case (((nodeId, node), name), position) =>
      val metadata = node.eventTime.metadata
      val idleAfterMs = if (metadata.contains(Mark)) Some(metadata.getLong(Mark)) else None
      WatermarkInput(nodeId, name.copy(number = names.take(position).count(_ == name)), idleAfterMs)
    }
  }

  private def sourcesOf(node: EventTimeWatermark): Seq[String] = node.collectLeaves().flatMap(SourceNames.of(_)).sorted

  /** Spark logs what a listener throws, and goes on. So whether `follow` has run is checked where a batch is planned. */
  object Check extends ColumnarRule {
    override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
      plan.foreach {
        case node: EventTimeWatermarkExec if node.eventTime.metadata.contains(Mark) && isUnfollowed(plan) =>
          throw CkptErrors.invalidInput(
            "This query has an input with idle_after, but its watermark could not be taken over.",
            "The driver's log has the reason, as an error of a StreamingQueryListener. Or use Spark's withWatermark.")
        case _ =>
      }
      plan
    }

    private def isUnfollowed(plan: SparkPlan): Boolean =
      Option(plan.session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
        .exists(_ != SQLConf.get.getConfString(Followed, "")) // a query's frames have sessions with its confs
  }

  /** What a query's own thread asks at each trigger, before it looks for new rows. */
  private final class EachTrigger(query: MicroBatchExecution, failures: ErrorNotifier) extends ErrorNotifier {
    private val startedMs = query.triggerClock.getTimeMillis()
    private lazy val tracker = IdleTracker.putInto(query, startedMs)

    override def throwErrorIfExists(): Unit = {
      failures.throwErrorIfExists()
      super.throwErrorIfExists()
      tracker.beforeTrigger()
    }
  }
}
