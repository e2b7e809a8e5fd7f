package org.apache.spark.sql.ckpt

import org.scalatest.funsuite.AnyFunSuite

class NearCacheSuite extends AnyFunSuite {
  private val found = new NearCache.Found

  private def key(number: Int): Array[Byte] = java.nio.ByteBuffer.allocate(4).putInt(number).array

  private def put(cache: NearCache, number: Int, value: String): Unit =
    cache.put(key(number), 4, ByteMap.hash(key(number), 4), value.getBytes, 0, value.length, found)

  private def get(cache: NearCache, number: Int): Option[String] =
    if (cache.find(key(number), 4, ByteMap.hash(key(number), 4), found)) {
      Some(new String(found.map.value(found.entry)))
    } else {
      None
    }

  test("forgets everything when the next transaction starts from another version") {
    val cache = new NearCache(new MemoryBudget(64 << 20))
    assert(cache.lease("1-a"))
    put(cache, 1, "one")
    cache.giveBack("2-b")
    assert(cache.lease("2-b"))
    assert(get(cache, 1).contains("one"))
    cache.giveBack("2-b")
    assert(cache.lease("2-c"))
    assert(get(cache, 1).isEmpty)
  }

  test("is leased to one transaction at a time") {
    val cache = new NearCache(new MemoryBudget(64 << 20))
    assert(cache.lease("1-a"))
    assert(!cache.lease("1-a"))
    cache.giveBack("1-a")
    assert(cache.lease("1-a"))
  }

  test("shows the newest value when a key is in both generations") {
    val budget = new MemoryBudget(1 << 20)
    val cache = new NearCache(budget)
    cache.lease("1-a")
    put(cache, 1, "old")
    (2 to 20000).foreach(put(cache, _, "filler"))
    put(cache, 1, "new")
    assert(get(cache, 1).contains("new"))
  }

  test("stays near its budget whatever is put") {
    val budget = new MemoryBudget(4 << 20)
    val cache = new NearCache(budget)
    cache.lease("1-a")
    (1 to 200000).foreach { number =>
      put(cache, number, "some value of a row")
      if (number % 1000 == 0) assert(cache.bytes <= budget.bytesPerCache * 2)
    }
  }
}
