package org.apache.spark.sql.ckpt.rows

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.unsafe.Platform

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

  test("large values take little more memory than they have") {
    for (size <- Seq(200 << 10, 600 << 10, 2 << 20)) {
      val map = new ByteMap
      (1 to 20).foreach(n => map.put(findOrInsert(map, Array(n.toByte)), new Array[Byte](size), 0, size))
      assert(map.bytes < 20L * size * 5 / 4, s"$size bytes a value")
    }
  }

  test("an array of many small values is no larger than a MiB with its header") {
    val map = new ByteMap
    (1 to 100000).foreach { n =>
      val key = Array[Byte](n.toByte, (n >> 8).toByte, (n >> 16).toByte)
      map.put(findOrInsert(map, key), new Array[Byte](100), 0, 100)
    }
    val slabs = (0 until map.size).map(map.valueSlab(_).length)
    assert(slabs.max > 1000000 && slabs.max + 16 <= (1 << 20))
  }

  test("counts what it keeps about values that grow") {
    def filled(put: (ByteMap, Int) => Unit): ByteMap = {
      val map = new ByteMap
      (1 to 100).foreach(n => put(map, findOrInsert(map, Array(n.toByte))))
      map
    }
    val once = filled((map, entry) => map.put(entry, new Array[Byte](20), 0, 20))
    val grown = filled((map, entry) => map.extend(entry, new Array[Byte](10), 10)) // has room for 20
    assert(grown.bytes >= once.bytes + 100 * 64)
    (0 until 100).foreach(entry => grown.delete(entry))
    assert(grown.bytes == once.bytes)
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

  /** Sorts all entries, and checks their order. */
  private def checkSorted(keys: Seq[Array[Byte]], clue: String): Unit = {
    val map = new ByteMap
    keys.foreach(findOrInsert(map, _))
    val words = new Random(7).shuffle((0 until map.size).toList).map(EntrySort.word(map, _, 0)).toArray
    val sorted = EntrySort.sort(map, words, 0).map(map.key)
    val expected = sorted.clone
    java.util.Arrays.sort(expected, java.util.Arrays.compareUnsigned(_: Array[Byte], _: Array[Byte]))
    assert(sorted.length == map.size && sorted.map(_.toSeq).toSeq == expected.map(_.toSeq).toSeq, clue)
  }

  test("sorts keys that share a beginning of any length") {
    for (length <- Seq(1, 3, 4, 5, 999, 40000); count <- Seq(17, 200)) {
      val beginning = Array.fill[Byte](length)(120)
      checkSorted((0 until count).map(i => beginning ++ Array((i >> 8).toByte, i.toByte, 9.toByte)), s"$length bytes")
    }
    // Half of the keys part early, half of those later, and so on.
    checkSorted((0 until 2000).map(i => Array.fill[Byte](5000 >> (i % 12))(1) ++ Array((i >> 8).toByte, i.toByte)),
      "many lengths")
  }

  test("sorts keys of which each is the beginning of the next") {
    checkSorted((0 until 3000).map(new Array[Byte](_)), "zeros")
    checkSorted((0 until 1000).map(Array.fill[Byte](_)(-1)), "ones")
    checkSorted((0 until 500).flatMap(i => Seq(new Array[Byte](i), new Array[Byte](i) :+ 1.toByte)), "zeros and a one")
  }

  test("a snapshot shows the values of when it was made, and the next one those of then") {
    (1 to 5).foreach { seed =>
      val random = new Random(seed)
      val map = new ByteMap
      val present = mutable.HashMap.empty[Int, Option[Seq[Byte]]]
      val open = mutable.ArrayBuffer.empty[(map.Snapshot, Map[Int, Option[Seq[Byte]]])]
      (1 to 3000).foreach { _ =>
        val key = Array(random.nextInt(40).toByte)
        val entry = findOrInsert(map, key)
        val bytes = new Array[Byte](random.nextInt(30))
        random.nextBytes(bytes)
        random.nextInt(8) match {
          case 0 =>
            map.delete(entry)
            present(entry) = None
          case 1 | 2 =>
            map.put(entry, bytes, 0, bytes.length)
            present(entry) = Some(bytes.toSeq)
          case 3 | 4 =>
            map.extend(entry, bytes, bytes.length)
            present(entry) = Some(present.get(entry).flatten.getOrElse(Nil) ++ bytes)
          case 5 => open += map.snapshot() -> present.toMap
          case 6 if open.nonEmpty => open.remove(random.nextInt(open.length))._1.close()
          case _ =>
            open.foreach { case (snapshot, expected) =>
              expected.foreach { case (at, value) =>
                snapshot.at(at)
                val found = if (!snapshot.hasValue) None
                else Some(snapshot.valueSlab.slice(snapshot.valueOffset,
                    snapshot.valueOffset + snapshot.valueLength).toSeq)
                assert(found == value, s"seed $seed")
              }
            }
        }
      }
    }
  }

  test("overwrites a value of the same size, but not while a scan is open, nor one that can be extended") {
    val map = new ByteMap
    val entry = map.insert(Array[Byte](0, 1), 2, 5)
    def put(number: Byte, size: Int): Unit =
      map.put(entry, Array.fill(size)(number), Platform.BYTE_ARRAY_OFFSET, size, overwrites = true)
    put(1, 100)
    val garbage = map.garbageBytes
    put(2, 100)
    assert(map.value(entry).toSeq == Seq.fill(100)(2.toByte) && map.garbageBytes == garbage)
    val scan = map.snapshot()
    put(3, 100)
    scan.at(entry)
    assert(scan.valueSlab(scan.valueOffset) == 2 && map.value(entry).head == 3)
    scan.close()
    map.extend(entry, Array[Byte](4), 1)
    val (slab, at) = (map.valueSlab(entry), map.valueOffset(entry))
    put(5, 101)
    assert(slab(at) == 3 && map.value(entry).toSeq == Seq.fill(101)(5.toByte))
  }

  test("counts replaced values and absent keys as garbage") {
    val map = new ByteMap
    val entries = (0 until 1000).map(i => map.insert(Array[Byte](0, 1, (i >> 8).toByte, i.toByte), 4, i))
    entries.foreach(map.put(_, new Array[Byte](100), 0, 100))
    assert(map.garbageBytes < (64 << 10))
    entries.foreach(map.put(_, new Array[Byte](100), 0, 100))
    assert(map.garbageBytes >= 100 * 1000)
    entries.foreach(map.delete)
    assert(map.garbageBytes >= (200 + 4 + 48) * 1000)
  }
}
