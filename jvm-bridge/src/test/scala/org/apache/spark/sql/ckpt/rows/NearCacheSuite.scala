package org.apache.spark.sql.ckpt.rows

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.settings.MemoryBudget

class NearCacheSuite extends AnyFunSuite {
  private def cache = new NearCache(new MemoryBudget(64 << 20))

  private def withRow(rows: ByteMap): ByteMap = {
    rows.insert(Array[Byte](1), 1, 1)
    rows
  }

  test("lends the rows of the version that they show") {
    val cache = this.cache
    cache.giveBack(withRow(cache.lend("1-a")), "2-b")
    assert(cache.lend("2-b").size == 1)
  }

  test("forgets everything when the next transaction starts from another version") {
    val cache = this.cache
    cache.giveBack(withRow(cache.lend("1-a")), "2-b")
    cache.giveBack(cache.lend("2-c"), "2-c")
    assert(cache.lend("2-b").size == 0)
  }

  test("lends to one transaction at a time") {
    val cache = this.cache
    val rows = withRow(cache.lend("1-a"))
    assert(cache.lend("1-a") == null)
    cache.giveBack(rows, "1-a")
    assert(cache.lend("1-a").size == 1)
  }

  test("rows that show no version are never lent again") {
    val cache = this.cache
    withRow(cache.lend("1-a"))
    cache.discard()
    assert(cache.lend("1-a").size == 0)
  }
}
