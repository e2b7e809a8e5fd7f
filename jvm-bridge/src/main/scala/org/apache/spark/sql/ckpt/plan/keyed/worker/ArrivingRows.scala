package org.apache.spark.sql.ckpt.plan.keyed.worker

import java.util.concurrent.{ArrayBlockingQueue, Semaphore, TimeUnit}

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow

/** The rows of a partition in real-time mode, in groups: each has what has arrived while the worker processed the last one.
  *
  * A thread of its own takes the rows, because their source blocks until there is one. The first group, and one at each
  * tick, may have no rows: the worker then fires timers that are due.
  */
private[ckpt] final class ArrivingRows(rows: Iterator[InternalRow], context: TaskContext, ticks: Boolean)
  extends Iterator[Iterator[InternalRow]] {
  private val queue = new ArrayBlockingQueue[InternalRow](ArrivingRows.Waiting)
  private val credits = new Semaphore(1)
  private val group = new java.util.ArrayList[InternalRow]
  @volatile private var failure: Throwable = _
  private var isFirst = true
  private var isReady, isOver = false

  private val thread = new Thread(s"ckpt-rows-of-task-${context.taskAttemptId()}") {
    override def run(): Unit =
      try {
        TaskContext.setTaskContext(context)
        while (rows.hasNext) queue.put(rows.next().copy())
        queue.put(ArrivingRows.End)
      } catch {
        case _: InterruptedException if context.isCompleted() || context.isInterrupted() => // nobody waits for more
        case problem: Throwable =>
          failure = problem
          queue.clear()
          queue.offer(ArrivingRows.End)
      } finally {
        TaskContext.unset()
      }
  }
  thread.setDaemon(true)
  context.addTaskCompletionListener[Unit](_ => thread.interrupt())
  thread.start()

  /** The worker has processed a group, and is given the next one. */
  def answered(): Unit = credits.release()

  override def hasNext: Boolean = {
    if (!isReady && !isOver) {
      credits.acquire()
      fill()
    }
    isReady
  }

  private def fill(): Unit = {
    val first =
      if (isFirst) queue.poll() else if (ticks) queue.poll(ArrivingRows.TickMs, TimeUnit.MILLISECONDS) else queue.take()
    isFirst = false
    if (first != null) {
      group.add(first)
      var bytes = ArrowWorker.sizeOf(first)
      while (group.size < ArrowWorker.MostRows && bytes < ArrowWorker.MostBytes && !queue.isEmpty) {
        val next = queue.poll()
        group.add(next)
        bytes += ArrowWorker.sizeOf(next)
      }
      isOver = group.get(group.size - 1) eq ArrivingRows.End
      if (isOver) group.remove(group.size - 1)
      if (failure != null) throw failure
    }
    isReady = !isOver || !group.isEmpty
  }

  override def next(): Iterator[InternalRow] = {
    if (!hasNext) throw new NoSuchElementException
    isReady = false
    val taken = group.toArray(Array.empty[InternalRow])
    group.clear()
    taken.iterator
  }
}

private[ckpt] object ArrivingRows {
  private final val Waiting = 4096
  private final val TickMs = 50L
  private val End = InternalRow()
}
