package org.apache.spark.sql.ckpt.plan.keyed.worker

import java.util.concurrent.{ArrayBlockingQueue, Semaphore, TimeUnit}

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow

/** The rows of a partition in real-time mode, in groups: each has what has arrived while the worker processed the last one.
  *
  * A thread of its own takes the rows, because their source blocks until there is one. The first group, and one at each
  * tick, may have no rows: the worker then fires timers that are due.
  */
private[ckpt] final class ArrivingRows(
    rows: Iterator[InternalRow], context: TaskContext, ticks: Boolean, measures: LiveMeasures)
  extends Iterator[Iterator[InternalRow]] {
  import ArrivingRows._

  private val queue = new ArrayBlockingQueue[Arrived](Waiting)
  private val credits = new Semaphore(1)
  private val group = new ArrayBuffer[Arrived]
  @volatile private var sent: Sent = _
  @volatile private var failure: Throwable = _
  private var isReady, isOver = false

  private val thread = new Thread(s"ckpt-rows-of-task-${context.taskAttemptId()}") {
    override def run(): Unit =
      try {
        TaskContext.setTaskContext(context)
        while (rows.hasNext) queue.put(new Arrived(rows.next().copy()))
        queue.put(End)
      } catch {
        case _: InterruptedException if context.isCompleted() || context.isInterrupted() => // nobody waits for more
        case problem: Throwable =>
          failure = problem
          queue.clear()
          queue.offer(End)
      } finally {
        TaskContext.unset()
      }
  }
  thread.setDaemon(true)
  context.addTaskCompletionListener[Unit](_ => thread.interrupt())
  thread.start()

  /** The worker has processed a group, whose output has been taken, and is given the next one. It also answers to the
    * end of all groups, of which there may be none.
    */
  def answered(): Unit = {
    if (sent != null && !sent.isAnswered) {
      measures.add(sent.arrivals, sent.lateMs)
      sent.isAnswered = true
    }
    credits.release()
  }

  override def hasNext: Boolean = {
    if (!isReady && !isOver) {
      credits.acquire()
      fill()
    }
    isReady
  }

  private def fill(): Unit = {
    val first =
      if (sent == null) queue.poll() else if (ticks) queue.poll(tickInNs, TimeUnit.NANOSECONDS) else queue.take()
    if (first != null) {
      group += first
      var bytes = ArrowWorker.sizeOf(first.row)
      while (group.size < ArrowWorker.MostRows && bytes < ArrowWorker.MostBytes && !queue.isEmpty) {
        val next = queue.poll()
        group += next
        bytes += ArrowWorker.sizeOf(next.row)
      }
      isOver = group.last eq End
      if (isOver) group.remove(group.size - 1)
      if (failure != null) throw failure
    }
    isReady = !isOver || group.nonEmpty
  }

  /** When the next tick is due: it comes late if the worker was busy. */
  private def tickInNs: Long = sent.atNs + TickMs * 1000000 - System.nanoTime()

  override def next(): Iterator[InternalRow] = {
    if (!hasNext) throw new NoSuchElementException
    isReady = false
    val lateMs = if (ticks && sent != null && !sent.isFirst) Math.max(0, -tickInNs / 1000000) else 0
    val taken = group.toArray
    group.clear()
    sent = new Sent(taken.map(_.atNs), lateMs, isFirst = sent == null)
    taken.iterator.map(_.row)
  }
}

private[ckpt] object ArrivingRows {
  private final val Waiting = 4096
  private final val TickMs = 50L
  private val End = new Arrived(InternalRow())

  private final class Arrived(val row: InternalRow) {
    val atNs: Long = System.nanoTime()
  }

  /** A group that the worker has. `arrivals`: of its rows. `lateMs`: by how much it is later than a tick was due. The first
    * one waits for the worker to start.
    */
  private final class Sent(val arrivals: Array[Long], val lateMs: Long, val isFirst: Boolean) {
    val atNs: Long = System.nanoTime()
    var isAnswered = false
  }
}
