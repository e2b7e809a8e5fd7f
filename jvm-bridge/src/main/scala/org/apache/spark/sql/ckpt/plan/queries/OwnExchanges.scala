package org.apache.spark.sql.ckpt.plan.queries

import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.query.{QuerySession, WatermarkNodes}
import org.apache.spark.sql.ckpt.plan.inputs.IdleInputs
import org.apache.spark.sql.ckpt.plan.keyed.KeyedOperator
import org.apache.spark.sql.internal.SQLConf

/** Gives each operator of a query with keyed operators exchanges of its own.
  *
  * Spark reads an exchange once if a plan has it twice, as where two operators key one frame by the same columns. After
  * a batch, Spark computes the watermarks of the next one from the executed plan: see shouldRunAnotherBatch of
  * IncrementalExecution. Nothing is below the second use of an exchange there, so the operator above it would have the
  * watermark 0 in every batch, and its timers would never fire.
  */
private[ckpt] object OwnExchanges {

  /** Must be called on the query's own thread, before it plans a batch. */
  def giveTo(query: StreamExecution): Unit =
    if (query.analyzedPlan.exists(_.isInstanceOf[KeyedOperator]) || needsAllInputs(query)) {
      QuerySession.of(query).conf.set(SQLConf.EXCHANGE_REUSE_ENABLED.key, "false")
    }

  /** Whether inputs of the watermark that may be idle are found in the executed plan by their order: so each must be there.
    */
  private def needsAllInputs(query: StreamExecution): Boolean =
    WatermarkNodes.areFoundByOrder && IdleInputs.areIn(query.analyzedPlan)
}
