package org.apache.spark.sql.ckpt.schedules

import java.util.concurrent.atomic.{AtomicInteger, AtomicReference}

import org.apache.spark.TaskContext
import org.apache.spark.sql.ckpt.rows.{ByteMap, NearCache, Residence}
import org.apache.spark.sql.ckpt.server.CancellableTask
import org.apache.spark.sql.ckpt.settings.MemoryBudget
import org.apache.spark.sql.ckpt.transactions.{Closing, IdleViews}

/** Scenes of two threads, which end with a check. They use few classes, because each is rewritten before it is watched:
  * no assertions of ScalaTest, and no collections of Scala.
  */
object Scenes {
  private def require(holds: Boolean, what: String): Unit = if (!holds) throw new IllegalStateException(what)

  private def together(one: Runnable, other: Runnable): Unit = {
    val (first, second) = (new Thread(one), new Thread(other))
    first.start()
    second.start()
    first.join()
    second.join()
  }

  private def budget = new MemoryBudget(1L << 30, heapBytes = 2L << 30)

  /** A race that is there. */
  final class UnguardedCount extends Runnable {
    override def run(): Unit = {
      val count = new Count
      together(() => count.add(), () => count.add())
      require(count.value == 2, "a count is lost")
    }
  }

  private final class Count {
    var value = 0
    def add(): Unit = value += 1
  }

  final class MemoryOfAClosedStore extends Runnable {
    override def run(): Unit = {
      val shared = budget
      val residence = new Residence(shared, isWanted = true, () => false, _ => ())
      together(
        () => {
          residence.hold(1000)
          residence.hold(2000)
        },
        () => residence.close())
      require(shared.residentBytes == 0 && residence.held == 0, "a closed store holds memory")
    }
  }

  final class MemoryOfTwoStores extends Runnable {
    override def run(): Unit = {
      val shared = budget
      val limit = shared.residentLimit
      val one = new Residence(shared, isWanted = true, () => false, _ => ())
      val other = new Residence(
        shared, isWanted = true,
        () => {
          one.close() // the run of the other store has ended
          true
        },
        _ => ())
      together(() => one.hold(limit), () => if (!other.hold(limit)) other.fallBack(limit))
      require(shared.residentBytes == one.held + other.held, "the count of memory is wrong")
      require(shared.residentBytes <= limit, "more memory is held than there is")
    }
  }

  final class LentRows extends Runnable {
    override def run(): Unit = {
      val cache = new NearCache(budget)
      val borrowers = new AtomicInteger
      def borrow(): Unit = if (cache.lend("1-a") != null) borrowers.incrementAndGet()
      together(() => borrow(), () => borrow())
      require(borrowers.get == 1, "rows are lent to two transactions, or to none")
    }
  }

  final class EmptiedCache extends Runnable {
    override def run(): Unit = {
      val cache = new NearCache(budget)
      val rows = cache.lend("1-a")
      rows.isComplete = true
      together(() => cache.giveBack(rows, "1-a"), () => cache.empty())
      require(!cache.hasAll("1-a"), "an emptied cache has rows")
      val next: ByteMap = cache.lend("1-a")
      require(next ne rows, "rows of an emptied cache are lent")
    }
  }

  final class LastTask extends Runnable {
    override def run(): Unit = {
      val closing = new Closing
      val (inside, stopped, closed, closedUnderTask) =
        (new AtomicInteger, new AtomicInteger, new AtomicInteger, new AtomicInteger)
      def work(): Unit = {
        TaskContext.setTaskContext(Task)
        val leave = closing.enter()
        if (stopped.get == 0) {
          inside.incrementAndGet()
          inside.decrementAndGet()
        }
        leave()
        TaskContext.unset()
      }
      def close(): Unit = {
        stopped.incrementAndGet() // as a store, which gives out no handle from then on
        closing.whenEmpty { () =>
          closedUnderTask.addAndGet(inside.get)
          closed.incrementAndGet()
        }
      }
      together(() => work(), () => close())
      require(closed.get == 1, "it is not closed, or twice")
      require(closedUnderTask.get == 0, "it is closed under a task")
    }
  }

  private val Task = TaskContext.empty()

  final class CancelledWork extends Runnable {
    override def run(): Unit = {
      val (begun, ended, endedInTime) = (new AtomicInteger, new AtomicInteger, new AtomicInteger)
      val task = new CancellableTask(() => {
        begun.incrementAndGet()
        ended.incrementAndGet()
      })
      together(
        task,
        () => {
          task.cancelOrAwait()
          endedInTime.set(ended.get)
        })
      require(begun.get == endedInTime.get, "work goes on, or begins, after somebody has waited for its end")
    }
  }

  private final class View {
    val closed = new AtomicInteger
  }

  private def views = new IdleViews[View](2, _ => "a", _.closed.incrementAndGet())

  final class ViewOfAForgottenPath extends Runnable {
    override def run(): Unit = {
      val idle = views
      val current = new AtomicReference("a")
      val view = new View
      together(
        () => idle.giveBack(view, _ => current.get == "a"),
        () => {
          current.set("b")
          idle.forget("a")
        })
      require(!idle.have("a") && view.closed.get == 1, "a view is left of a path that is out of use")
    }
  }

  final class ViewsAtTheEnd extends Runnable {
    override def run(): Unit = {
      val idle = views
      val (one, other) = (new View, new View)
      idle.giveBack(one, _ => true)
      together(
        () => {
          idle.take("a")
          idle.giveBack(one, _ => true)
          idle.giveBack(other, _ => true)
        },
        () => idle.close())
      require(!idle.have("a") && other.closed.get == 1, "a view is left open at the end")
    }
  }
}
