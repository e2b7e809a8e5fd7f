package org.apache.spark.sql.ckpt.settings

import org.scalatest.funsuite.AnyFunSuite

class MemoryBudgetSuite extends AnyFunSuite {
  test("fits into a heap of twice its part, and into an overhead that holds the rest") {
    val budget = new MemoryBudget(1L << 30, heapBytes = 2L << 30)
    assert(budget.misfits(Some(384L << 20)).isEmpty)
    assert(budget.misfits(None).isEmpty)
  }

  test("says what does not fit, with both figures and what to do") {
    val problems = new MemoryBudget(1L << 30, heapBytes = 1L << 30).misfits(Some(300L << 20))
    assert(problems.length == 2)
    assert(problems(0).contains("768 MiB of a heap of 1024 MiB") && problems(0).contains("lower memoryLimit"))
    assert(problems(0).contains("They get 512 MiB"))
    assert(problems(1).contains("may take 356 MiB") && problems(1).contains("spark.executor.memoryOverhead is 300 MiB"))
  }

  test("caches and write sets take half of the heap at most, whatever the limit is") {
    val budget = new MemoryBudget(8L << 30, heapBytes = 600L << 20)
    assert(budget.residentLimit == (200L << 20) && budget.bytesPerWriteSet == (100L << 20))
    assert(budget.hold(200L << 20) && !budget.hold(1))
  }

  test("a store that asks for too much takes nothing from those that ask for what there is") {
    val budget = new MemoryBudget(1L << 30)
    @volatile var isDone = false
    val greedy = new Thread(() => while (!isDone) assert(!budget.hold(budget.residentLimit + 1)))
    greedy.start()
    try {
      (1 to 1000000).foreach { _ =>
        assert(budget.hold(1000))
        budget.hold(-1000)
      }
    } finally {
      isDone = true
      greedy.join()
    }
    assert(budget.residentBytes == 0)
  }

  test("stores in memory take what they need of the near caches' part, and the caches share the rest") {
    val budget = new MemoryBudget(1L << 30, heapBytes = 2L << 30)
    budget.cacheOpened()
    assert(budget.residentLimit == (512L << 20) && budget.bytesPerCache == budget.residentLimit)
    assert(budget.hold(300L << 20) && !budget.hold(300L << 20) && budget.hold(200L << 20))
    assert(budget.residentBytes == (500L << 20) && budget.bytesPerCache == (12L << 20))
    assert(budget.hold(-(500L << 20)) && budget.bytesPerCache == budget.residentLimit)
  }
}
