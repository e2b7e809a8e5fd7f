package org.apache.spark.sql.ckpt.plan.batches

import java.lang.reflect.Field
import java.util.concurrent.atomic.AtomicReference

import org.apache.spark.sql.ckpt.minor.{ErrorNotifier, MicroBatchExecution, State, StreamExecution, Terminated}

/** Ends a query after the running batch: this batch is committed, and no other is planned.
  *
  * In Spark, only a trigger ends a query in this way. It is not enough to set the query's state: a batch that is being
  * planned then interrupts itself (`MicroBatchExecution.runBatch`), perhaps in the middle of a `foreachBatch` function.
  * Before the query's own thread plans a batch, it asks an `ErrorNotifier` whether a parallel thread has failed. This
  * object replaces that notifier.
  */
private[ckpt] object LastBatch {

  /** Returns at once. A query that waits for its next trigger notices the end only then; it is safe to stop it. */
  def announce(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution =>
      val field = notifierOf(batches)
      val state = classOf[StreamExecution].getMethod("state").invoke(query).asInstanceOf[AtomicReference[State]]
      field.set(batches, new End(field.get(batches).asInstanceOf[ErrorNotifier], state))
    case _ =>
  }

  /** Takes the announcement back. A query that has already noticed it still ends. */
  def withdraw(query: StreamExecution): Unit = query match {
    case batches: MicroBatchExecution =>
      val field = notifierOf(batches)
      field.get(batches) match {
        case end: End => field.set(batches, end.failures)
        case _ =>
      }
    case _ =>
  }

  private def notifierOf(query: MicroBatchExecution): Field = {
    val field = classOf[MicroBatchExecution].getDeclaredField("errorNotifier")
    field.setAccessible(true)
    field
  }

  private final class End(val failures: ErrorNotifier, state: AtomicReference[State]) extends ErrorNotifier {
    override def throwErrorIfExists(): Unit = {
      failures.throwErrorIfExists()
      super.throwErrorIfExists()
      state.set(Terminated)
      throw new InterruptedException("The query was asked to end after its last batch.")
    }
  }
}
