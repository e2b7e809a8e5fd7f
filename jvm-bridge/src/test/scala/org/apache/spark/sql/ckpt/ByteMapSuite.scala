package org.apache.spark.sql.ckpt

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

class ByteMapSuite extends AnyFunSuite {

  private def randomKey(random: Random): Array[Byte] = {
    // Few distinct bytes, many lengths: keys that are prefixes of one another and long equal words.
    val key = new Array[Byte](random.nextInt(24))
    key.indices.foreach(i => key(i) = (random.nextInt(3) - 1).toByte)
    key
  }

  private def entryOf(map: ByteMap, key: Array[Byte]): Int = map.find(key, key.length, ByteMap.hash(key, key.length))

  private def findOrInsert(map: ByteMap, key: Array[Byte]): Int = {
    val entry = entryOf(map, key)
    if (entry >= 0) entry else map.insert(key, key.length, ByteMap.hash(key, key.length))
  }

  test("holds what a model holds when keys are put, replaced and deleted in any order") {
    (1 to 20).foreach { seed =>
      val random = new Random(seed)
      val map = new ByteMap
      val model = mutable.HashMap.empty[Seq[Byte], Option[Seq[Byte]]]
      (1 to 5000).foreach { _ =>
        val key = randomKey(random)
        val entry = findOrInsert(map, key)
        if (random.nextInt(4) == 0) {
          map.delete(entry)
          model(key.toSeq) = None
        } else {
          val value = new Array[Byte](random.nextInt(2000))
          random.nextBytes(value)
          map.put(entry, value, 0, value.length)
          model(key.toSeq) = Some(value.toSeq)
        }
      }
      assert(map.size == model.size, s"seed $seed")
      model.foreach { case (key, expected) =>
        val entry = entryOf(map, key.toArray)
        assert(entry >= 0, s"seed $seed")
        assert((if (map.hasValue(entry)) Some(map.value(entry).toSeq) else None) == expected, s"seed $seed")
      }
    }
  }

  test("keeps the bytes of a replaced value for whoever still points at them") {
    val map = new ByteMap
    val key = Array[Byte](1)
    val entry = findOrInsert(map, key)
    map.put(entry, Array[Byte](7, 7), 0, 2)
    val (slab, offset) = (map.valueSlab(entry), map.valueOffset(entry))
    map.put(entry, Array[Byte](8, 8), 0, 2)
    assert(slab(offset) == 7 && slab(offset + 1) == 7)
  }

  test("what one epoch has written is not written in the next, and grows older") {
    val map = new ByteMap
    val entry = map.insert(Array[Byte](1, 2), 2, 5)
    assert(!map.isWritten(entry) && !map.hasValue(entry))
    map.markWritten(entry, wasThere = true)
    map.used(entry)
    assert(map.isWritten(entry) && map.wasThere(entry) && map.age(entry) == 0)
    map.beginEpoch()
    assert(!map.isWritten(entry) && map.age(entry) == 1)
    map.beginEpoch()
    map.used(entry)
    assert(!map.isWritten(entry) && map.age(entry) == 0)
    map.markWritten(entry, wasThere = false)
    assert(map.isWritten(entry) && !map.wasThere(entry))
  }

  test("keeps its stamps apart when the epochs come round") {
    val map = new ByteMap(0x3fffffff)
    val entry = map.insert(Array[Byte](1), 1, 5)
    map.markWritten(entry, wasThere = true)
    assert(map.isWritten(entry))
    map.beginEpoch()
    assert(map.epoch == 0 && map.age(entry) == 1 && !map.isWritten(entry))
  }

  test("an entry copied from another map is as it was there") {
    val (from, to) = (new ByteMap(7), new ByteMap(7))
    to.insert(Array[Byte](9), 1, 9)
    val entry = from.insert(Array[Byte](1, 2), 2, 5)
    from.put(entry, Array[Byte](3), 0, 1)
    from.markWritten(entry, wasThere = true)
    val copy = to.copyFrom(from, entry)
    assert(to.find(Array[Byte](1, 2), 2, 5) == copy && to.value(copy).toSeq == Seq(3))
    assert(to.isWritten(copy) && to.wasThere(copy))
  }

  test("sorts entries in unsigned order of their bytes, shorter first") {
    (1 to 50).foreach { seed =>
      val random = new Random(seed)
      val map = new ByteMap
      (1 to 2000).foreach { _ =>
        val key = randomKey(random)
        findOrInsert(map, key)
      }
      val words = random.shuffle((0 until map.size).toList).map(EntrySort.word(map, _, 0)).toArray
      val entries = EntrySort.sort(map, words, 0)
      assert(entries.sorted.toSeq == (0 until map.size), s"seed $seed")
      val keys = entries.map(map.key)
      val expected = keys.clone
      java.util.Arrays.sort(expected, java.util.Arrays.compareUnsigned(_: Array[Byte], _: Array[Byte]))
      assert(keys.map(_.toSeq).toSeq == expected.map(_.toSeq).toSeq, s"seed $seed")
    }
  }
}
