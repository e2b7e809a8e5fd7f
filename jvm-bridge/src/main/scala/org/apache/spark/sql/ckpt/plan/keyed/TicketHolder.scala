package org.apache.spark.sql.ckpt.plan.keyed

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.ckpt.store.CkptStateStore
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}
import org.apache.spark.util.CompletionIterator

/** An operator that fails if a task has one of its partitions twice, and takes rows from both by turns.
  *
  * A Python worker finds the transaction of its partition by a ticket. In a task, each partition of an operator has one
  * ticket: that of the transaction that began last. Two workers would write into that transaction, and the writes for the
  * other one would be lost. One reader after the other is right, also if the first stops before its end.
  */
private[ckpt] trait TicketHolder extends FlatMapGroupsInPandasWithStateExec {
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] =
    store match {
      case own: CkptStateStore =>
        val ticket = TicketHolder.take(own.id)
        val rows = super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
        val checked = new TicketHolder.Checked(rows, ticket, own.id, KeyedOperator.nameOf(functionExpr))
        CompletionIterator[InternalRow, Iterator[InternalRow]](checked, ())
      case _ => super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
    }
}

private[ckpt] object TicketHolder {
  private val ofTasks = new ConcurrentHashMap[TaskContext, ConcurrentHashMap[StateStoreId, Ticket]]

  private final class Ticket {
    @volatile var isReplaced = false
  }

  private def take(store: StateStoreId): Ticket = {
    val tickets = ofTasks.computeIfAbsent(
      TaskContext.get(),
      task => {
        task.addTaskCompletionListener[Unit](_ => ofTasks.remove(task))
        new ConcurrentHashMap
      })
    val ticket = new Ticket
    Option(tickets.put(store, ticket)).foreach(_.isReplaced = true)
    ticket
  }

  private final class Checked(rows: Iterator[InternalRow], ticket: Ticket, store: StateStoreId, name: String)
    extends Iterator[InternalRow] {
    private var isOver = false

    /** Its last call commits. */
    override def hasNext: Boolean = !isOver && {
      if (ticket.isReplaced) throw refusal
      isOver = !rows.hasNext
      !isOver
    }

    override def next(): InternalRow = rows.next()

    private def refusal: CkptException = CkptErrors.invalidInput(
      s"One task takes rows of partition ${store.partitionId} of $name twice at the same time, so the writes of one " +
        "would be lost.",
      "The foreachBatch function combines its frame with itself, as rdd.zip or a join does. Call persist() on the frame " +
        "before, and unpersist() after it; or read the frame once.")
  }
}
