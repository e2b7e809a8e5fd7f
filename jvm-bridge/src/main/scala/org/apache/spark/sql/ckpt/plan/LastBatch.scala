package org.apache.spark.sql.ckpt
package plan

import java.util.concurrent.atomic.AtomicReference

import org.apache.spark.sql.execution.streaming.runtime.{MicroBatchExecution, State, StreamExecution, TERMINATED}
import org.apache.spark.util.ErrorNotifier

/** Lets a query end behind the batch that runs: that is committed, and no other is planned.
  *
  * Spark has no such end but that of a trigger. To set the query's state alone is not enough: a batch that is being
  * planned then interrupts itself (`MicroBatchExecution.runBatch`), perhaps in the middle of a `foreachBatch` function.
  * So the query's own thread is told where it asks, before it plans a batch, whether what runs beside it has failed.
  */
private[ckpt] object LastBatch {

  /** Returns at once. A query that waits for its next trigger is told no sooner than that; to stop it is safe then. */
  def announce(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution =>
      val field = classOf[MicroBatchExecution].getDeclaredField("errorNotifier")
      field.setAccessible(true)
      val state = classOf[StreamExecution].getMethod("state").invoke(query).asInstanceOf[AtomicReference[State]]
      field.set(batches, new End(field.get(batches).asInstanceOf[ErrorNotifier], state))
    case _ =>
  }

  private final class End(failures: ErrorNotifier, state: AtomicReference[State]) extends ErrorNotifier {
    override def throwErrorIfExists(): Unit = {
      failures.throwErrorIfExists()
      super.throwErrorIfExists()
      state.set(TERMINATED)
      throw new InterruptedException("The query was asked to end behind its last batch.")
    }
  }
}
