package org.apache.spark.sql.ckpt

import java.util.UUID

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

/** What a task reads and writes: every method of the trait. */
class ProviderSuite extends ProviderRowTests("rocksdb")

class MemoryProviderSuite extends ProviderRowTests("memory")

abstract class ProviderRowTests(backend: String) extends ProviderTests(backend) {
  test("reads its own writes, and the next version reads what was committed") {
    start()
    val (one, first) = transaction(0, None) { store =>
      assert(store.get(key("a", 1)) == null)
      store.put(key("a", 1), value(10))
      store.put(key("b", 2), value(20))
      assert(store.get(key("a", 1)).getLong(0) == 10)
      store.remove(key("b", 2))
      assert(store.get(key("b", 2)) == null)
      assert(pairs(store.iterator()) == Seq(("a", 1, 10)))
    }
    transaction(one, first) { store =>
      assert(store.get(key("a", 1)).getLong(0) == 10)
      assert(store.get(key("b", 2)) == null)
      store.put(key("a", 1), value(11))
      store.put(key("c", 3), value(30))
      assert(pairs(store.iterator()).toSet == Set(("a", 1, 11), ("c", 3, 30)))
    }
  }

  test("counts rows exactly, whatever was read or not before a write") {
    start()
    val (one, first) = transaction(0, None)(store => (1 to 100).foreach(i => store.put(key("k", i), value(i))))
    val store = provider.getStore(one, first)
    (1 to 10).foreach(i => store.remove(key("k", i))) // present, not read before
    (101 to 120).foreach(i => store.remove(key("k", i))) // absent
    (50 to 60).foreach(i => store.put(key("k", i), value(0))) // replaced
    store.put(key("k", 200), value(0)) // new
    store.put(key("k", 201), value(0))
    store.remove(key("k", 201)) // new and gone again
    store.commit()
    assert(store.metrics.numKeys == 100 - 10 + 1)
  }

  test("an aborted transaction leaves no trace, and one on the same base goes on") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val lost = provider.getStore(one, first)
    lost.put(key("a", 1), value(99))
    lost.abort()
    transaction(one, first)(store => assert(store.get(key("a", 1)).getLong(0) == 1))
  }

  test("two attempts on one base do not wait for each other and each makes a version of its own") {
    start()
    val (one, base) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val (left, right) = (provider.getStore(one, base), provider.getStore(one, base))
    left.put(key("a", 1), value(2))
    right.put(key("a", 1), value(3))
    right.commit()
    assert(left.get(key("b", 1)) == null)
    left.commit()
    val (leftId, rightId) =
      (left.getStateStoreCheckpointInfo().stateStoreCkptId, right.getStateStoreCheckpointInfo().stateStoreCkptId)
    assert(leftId != rightId)
    transaction(2, leftId)(store => assert(store.get(key("a", 1)).getLong(0) == 2))
    transaction(2, rightId)(store => assert(store.get(key("a", 1)).getLong(0) == 3))
  }

  test("a read store becomes the write store of the same transaction") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val reading = provider.getReadStore(one, first)
    assert(reading.get(key("a", 1)).getLong(0) == 1)
    val writing = provider.upgradeReadStoreToWriteStore(reading, one, first)
    reading.release()
    writing.put(key("a", 1), value(2))
    assert(writing.commit() == 2)
  }

  test("a store opened for reading refuses writes by name") {
    start()
    val reading = provider.getReadStore(0, None).asInstanceOf[StateStore]
    val failure = intercept[CkptException](reading.put(key("a", 1), value(1)))
    assert(failure.kind == "LifecycleError" && failure.getMessage.contains("opened for reading"))
    reading.release()
  }

  test("a reader of state commits nothing, also in the session of a query") {
    start()
    val (one, first) = transaction(0, None)(_.put(key("a", 1), value(1)))
    val run = UUID.randomUUID().toString
    provider.close()
    start(ofReader = Some(run))
    assert(provider.served.run.isEmpty)
    val reading = provider.getStore(one, first) // as Spark's reader of transformWithState does
    assert(reading.get(key("a", 1)).getLong(0) == 1)
    reading.put(key("a", 1), value(2))
    val failure = intercept[CkptException](reading.commit())
    assert(failure.kind == "LifecycleError" && failure.getMessage.contains("belongs to no run of a query"))
  }

  test("scans the keys of one prefix, written and stored, in any number of transactions") {
    start(PrefixKeyScanStateEncoderSpec(keySchema, 1))
    val (one, first) = transaction(0, None) { store =>
      for (name <- Seq("a", "b", "c"); i <- 1 to 50) store.put(key(name, i), value(i))
    }
    transaction(one, first) { store =>
      store.remove(key("b", 7))
      store.put(key("b", 51), value(51))
      store.put(key("b", 8), value(80))
      val prefix = row(new StructType().add("name", StringType), "b")
      val seen = pairs(store.prefixScan(prefix))
      assert(seen.map(_._1).toSet == Set("b"))
      assert(seen.map(_._2).sorted == (1 to 51).filter(_ != 7).map(_.toLong))
      assert(seen.find(_._2 == 8).get._3 == 80)
      assert(pairs(store.prefixScan(row(new StructType().add("name", StringType), "zz"))).isEmpty)
    }
  }

  test("scans a range in key order, negative numbers first, bounds as Spark means them") {
    val schema = new StructType().add("number", LongType).add("name", StringType)
    start(RangeKeyScanStateEncoderSpec(schema, Seq(0)))
    def k(number: Long) = row(schema, number, s"n$number")
    def numbers(rows: StateStoreIterator[UnsafeRowPair]) = rows.map(_.key.getLong(0)).toList
    val (one, first) = transaction(0, None)(store => (-20L to 20L).foreach(i => store.put(k(i), value(i))))
    transaction(one, first) { store =>
      store.put(k(100), value(100))
      store.remove(k(0))
      val expected = ((-20L to -1L) ++ (1L to 20L) :+ 100L).toList
      assert(numbers(store.iterator()) == expected)
      assert(numbers(store.rangeScan(Some(k(-3)), Some(k(4)))) == List(-3L, -2L, -1L, 1L, 2L, 3L))
      assert(numbers(store.rangeScan(None, Some(k(-18)))) == List(-20L, -19L))
      assert(numbers(store.rangeScan(Some(k(19)), None)) == List(19L, 20L, 100L))
      assert(numbers(store.rangeScan(Some(k(19)), Some(k(3)))) == Nil, "as for Spark's own store")
      assert(numbers(store.rangeScan(Some(k(19)), Some(k(19)))) == Nil)
      store.deleteRange(k(-100), k(19))
      assert(numbers(store.iterator()) == List(19L, 20L, 100L))
    }
  }

  test("holds several values of a key in the order in which they came") {
    start(families = true, multiple = true)
    val (one, first) = transaction(0, None) { store =>
      store.merge(key("a", 1), value(1))
      store.mergeList(key("a", 1), Array(value(2), value(3)))
      store.putList(key("b", 1), Array(value(9)))
    }
    transaction(one, first) { store =>
      store.merge(key("a", 1), value(4))
      assert(store.valuesIterator(key("a", 1)).map(_.getLong(0)).toList == List(1L, 2L, 3L, 4L))
      assert(store.valuesIterator(key("none", 1)).isEmpty)
      assert(pairs(store.iteratorWithMultiValues()).map(_._3).sorted == Seq(1L, 2L, 3L, 4L, 9L))
      store.putList(key("a", 1), Array(value(7)))
      assert(store.valuesIterator(key("a", 1)).map(_.getLong(0)).toList == List(7L))
    }
  }

  test("keeps column families apart, removes one whole, and finds them again after a reload") {
    start(families = true)
    val (one, first) = transaction(0, None) { store =>
      store.createColFamilyIfAbsent("left", keySchema, valueSchema, noPrefix)
      store.createColFamilyIfAbsent("right", keySchema, valueSchema, noPrefix)
      store.put(key("a", 1), value(1), "left")
      store.put(key("a", 1), value(2), "right")
    }
    provider.close()
    start(families = true)
    val (two, second) = transaction(one, first) { store =>
      store.createColFamilyIfAbsent("left", keySchema, valueSchema, noPrefix)
      store.createColFamilyIfAbsent("right", keySchema, valueSchema, noPrefix)
      assert(store.get(key("a", 1), "left").getLong(0) == 1)
      assert(store.get(key("a", 1), "right").getLong(0) == 2)
      assert(store.removeColFamilyIfExists("left"))
      assert(!store.removeColFamilyIfExists("left"))
      assert(store.allColumnFamilyNames == Set("default", "right"))
    }
    transaction(two, second) { store =>
      store.createColFamilyIfAbsent("left", keySchema, valueSchema, noPrefix)
      assert(store.get(key("a", 1), "left") == null)
      assert(store.get(key("a", 1), "right").getLong(0) == 2)
    }
    val failure = intercept[Exception](transaction(3, None)(_.get(key("a", 1), "nowhere")))
    assert(failure.getMessage.contains("nowhere") || failure.getMessage.contains("3"))
  }
}
