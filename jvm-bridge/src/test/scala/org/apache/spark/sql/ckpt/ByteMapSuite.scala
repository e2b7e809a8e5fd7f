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

  test("holds what a model holds when keys are put, replaced and deleted in any order") {
    (1 to 20).foreach { seed =>
      val random = new Random(seed)
      val map = new ByteMap
      val model = mutable.HashMap.empty[Seq[Byte], Option[Seq[Byte]]]
      (1 to 5000).foreach { _ =>
        val key = randomKey(random)
        val entry = map.findOrInsert(key, key.length, ByteMap.hash(key, key.length))
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
        assert(entry >= 0 && map.isWritten(entry), s"seed $seed")
        assert((if (map.isDeleted(entry)) None else Some(map.value(entry).toSeq)) == expected, s"seed $seed")
      }
    }
  }

  test("keeps the bytes of a replaced value for whoever still points at them") {
    val map = new ByteMap
    val key = Array[Byte](1)
    val entry = map.findOrInsert(key, 1, ByteMap.hash(key, 1))
    map.put(entry, Array[Byte](7, 7), 0, 2)
    val (slab, offset) = (map.valueSlab(entry), map.valueOffset(entry))
    map.put(entry, Array[Byte](8, 8), 0, 2)
    assert(slab(offset) == 7 && slab(offset + 1) == 7)
  }

  test("an entry that was only looked at is neither written nor deleted") {
    val map = new ByteMap
    val entry = map.insert(Array[Byte](1, 2), 2, 5)
    assert(!map.isWritten(entry) && !map.isDeleted(entry) && !map.hasValue(entry))
    assert(map.mark(entry) == WriteSet.Unknown)
  }

  test("sorts entries in unsigned order of their bytes, shorter first") {
    (1 to 50).foreach { seed =>
      val random = new Random(seed)
      val map = new ByteMap
      (1 to 2000).foreach { _ =>
        val key = randomKey(random)
        map.findOrInsert(key, key.length, ByteMap.hash(key, key.length))
      }
      val entries = random.shuffle((0 until map.size).toList).toArray
      EntrySort.sort(map, entries)
      val keys = entries.map(map.key)
      val expected = keys.clone
      java.util.Arrays.sort(expected, WriteSet.ByteOrder)
      assert(keys.map(_.toSeq).toSeq == expected.map(_.toSeq).toSeq, s"seed $seed")
    }
  }
}
