package org.apache.spark.sql.ckpt.server

import java.util.concurrent.{
  ExecutionException,
  Future,
  RejectedExecutionException,
  ThreadPoolExecutor,
  TimeUnit,
  TimeoutException
}

import scala.util.{Failure, Success, Try}

/** Raised on an interrupted thread that has stopped waiting for the answer to its call. */
private[ckpt] final class LeftCallException extends RuntimeException

/** Waits for an answer although the task is being killed, because leaving does not undo the request. The wait is short,
  * because the thread of a task holds a core, and the server may wait minutes for a place.
  */
private[ckpt] object Uninterrupted {
  private val LeaveNanos = TimeUnit.SECONDS.toNanos(2)

  /** Passes a call to a pool whose threads are all busy. Raises LeftCallException on an interrupted thread. */
  def hand(call: Runnable, pool: ThreadPoolExecutor): Unit =
    insist(mayLeave = true) { nanos =>
      if (pool.isShutdown) throw new RejectedExecutionException("The state server has ended.")
      pool.getQueue.offer(call, math.min(nanos, TimeUnit.SECONDS.toNanos(1)), TimeUnit.NANOSECONDS)
    }

  /** Returns the answer. Raises LeftCallException on a thread that was interrupted a while ago, if it `mayLeave`. */
  def get[T](answer: Future[T], mayLeave: => Boolean): T = {
    var outcome = Option.empty[Try[T]]
    insist(mayLeave) { nanos =>
      try outcome = Some(Success(answer.get(nanos, TimeUnit.NANOSECONDS)))
      catch {
        case _: TimeoutException => ()
        case failure: ExecutionException => outcome = Some(Failure(failure.getCause))
      }
      outcome.nonEmpty
    }
    outcome.get.get
  }

  /** Repeats a wait of limited nanoseconds until `isOver`, or until it is time to leave. */
  private def insist(mayLeave: => Boolean)(isOver: Long => Boolean): Unit = {
    var interrupted = false
    var until = Long.MaxValue
    try {
      var over = false
      while (!over) {
        if (until != Long.MaxValue && System.nanoTime - until >= 0) {
          if (mayLeave) throw new LeftCallException
          until = Long.MaxValue // the answer is about to come
        }
        val left = if (until == Long.MaxValue) LeaveNanos else until - System.nanoTime
        try over = isOver(math.max(left, 1))
        catch {
          case _: InterruptedException =>
            if (!interrupted) until = System.nanoTime + LeaveNanos
            interrupted = true
        }
      }
    } finally {
      if (interrupted) Thread.currentThread().interrupt()
    }
  }
}
