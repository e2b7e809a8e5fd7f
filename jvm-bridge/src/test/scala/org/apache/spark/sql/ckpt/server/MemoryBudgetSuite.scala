package org.apache.spark.sql.ckpt
package server

import org.scalatest.funsuite.AnyFunSuite

class MemoryBudgetSuite extends AnyFunSuite {
  private val budget = new MemoryBudget(1L << 30)

  test("fits into a heap of twice its part, and into an overhead that holds the rest") {
    assert(budget.misfits(2L << 30, Some(384L << 20)).isEmpty)
    assert(budget.misfits(2L << 30, None).isEmpty)
  }

  test("says what does not fit, with both figures and what to do") {
    val problems = budget.misfits(1L << 30, Some(300L << 20))
    assert(problems.length == 2)
    assert(problems(0).contains("768 MiB of a heap of 1024 MiB") && problems(0).contains("lower memoryLimit"))
    assert(problems(1).contains("may take 356 MiB") && problems(1).contains("spark.executor.memoryOverhead is 300 MiB"))
  }

  test("stores in memory take what they need of the near caches' part, and the caches share the rest") {
    val budget = new MemoryBudget(1L << 30)
    budget.cacheOpened()
    assert(budget.residentLimit == (512L << 20) && budget.bytesPerCache == budget.residentLimit)
    assert(budget.hold(300L << 20) && !budget.hold(300L << 20) && budget.hold(200L << 20))
    assert(budget.residentBytes == (500L << 20) && budget.bytesPerCache == (12L << 20))
    assert(budget.hold(-(500L << 20)) && budget.bytesPerCache == budget.residentLimit)
  }
}
