package org.apache.spark.sql.ckpt.rows

import java.nio.file.{Files, Path}
import java.util.Arrays

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.rocksdb.{BlockBasedTableConfig, CompressionType, Options, ReadOptions, RocksDB, SstFileReader}
import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.MemoryBudget
import org.apache.spark.sql.ckpt.transactions.DeltaWriter
import org.apache.spark.unsafe.Platform

class WriteSetSuite extends AnyFunSuite with BeforeAndAfterEach {
  private var folder: Path = _

  override def beforeEach(): Unit = {
    RocksDB.loadLibrary()
    folder = Files.createTempDirectory("write-set")
  }

  override def afterEach(): Unit = LocalFolder.deleteAll(folder)

  private def rows(file: Path): Seq[(Seq[Byte], Seq[Byte])] = {
    val reader = new SstFileReader(new Options)
    reader.open(file.toString)
    val iterator = reader.newIterator(new ReadOptions)
    iterator.seekToFirst()
    val found = mutable.ArrayBuffer.empty[(Seq[Byte], Seq[Byte])]
    while (iterator.isValid) {
      found += iterator.key.toSeq -> iterator.value.toSeq
      iterator.next()
    }
    iterator.close()
    reader.close()
    found.toSeq
  }

  /** A key of a hashed state, some of which share their hash, or of a state in key order. */
  private def keyOf(number: Int): Array[Byte] =
    if (number % 2 == 0) Array[Byte](0, 1, 7, 7, 7, (number % 200).toByte, (number >> 8).toByte, number.toByte)
    else Array[Byte](-128, 2, (number >> 8).toByte, number.toByte, 9)

  private def hash(key: Array[Byte]): Int = ByteMap.hash(key, key.length)

  private def put(writes: WriteSet, key: Array[Byte], value: Option[Array[Byte]], inBase: => Boolean): Unit = {
    val known = writes.find(key, key.length, hash(key))
    val entry = if (known >= 0) known else writes.insert(key, key.length, hash(key), inBase)
    value match {
      case Some(bytes) => writes.put(entry, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, overwrites = true)
      case None => writes.delete(entry)
    }
  }

  private def randomValue(random: Random, most: Int): Array[Byte] = {
    val value = new Array[Byte](random.nextInt(most))
    random.nextBytes(value)
    value
  }

  /** Random reads and writes over few keys of two states, a third of them in the base version, against a map.
    *
    * `rounds` transactions in a row, each of them on the rows of its predecessor; the last one is checked.
    */
  private def play(seed: Int, limit: Long, lent: Boolean = true, rounds: Int = 1): Unit = {
    val random = new Random(seed)
    val budget = new MemoryBudget(limit)
    val most = if (limit < (10 << 20)) 1500 else 300 // so that what is there at one time is too much for little memory
    val base = mutable.HashMap.empty[Seq[Byte], Seq[Byte]]
    (0 until 4000 by 3).foreach(number => base(keyOf(number).toSeq) = randomValue(random, most).toSeq)
    var rows = if (lent) new ByteMap else null
    (1 to rounds).foreach { round =>
      val writes =
        new WriteSet(rows, folder.resolve(s"staging-$seed-$round"), new Options, budget, Residence.none(budget))
      val model = mutable.HashMap.empty[Seq[Byte], Option[Seq[Byte]]]
      (1 to 30000).foreach(_ => step(writes, base, model, random, most))
      if (limit < (10 << 20)) assert(writes.runs > 0, "the write set was meant to spill")
      if (round == rounds) check(writes, model, base, s"seed $seed")
      model.foreach {
        case (key, Some(value)) => base(key) = value
        case (key, None) => base -= key
      }
      val kept = writes.close()
      if (lent) {
        rows = kept
        checkKept(kept, base, budget, s"seed $seed")
      }
    }
  }

  private def step(
      writes: WriteSet,
      base: mutable.Map[Seq[Byte], Seq[Byte]],
      model: mutable.Map[Seq[Byte], Option[Seq[Byte]]],
      random: Random,
      most: Int): Unit = {
    val key = keyOf(random.nextInt(4000))
    random.nextInt(4) match {
      case 0 =>
        val known = writes.find(key, key.length, hash(key))
        val stored = base.get(key.toSeq).map(_.toArray).orNull
        val size = if (stored == null) -1 else stored.length
        val entry = if (known >= 0) known else writes.remember(key, key.length, hash(key), stored, size)
        val expected = model.getOrElse(key.toSeq, base.get(key.toSeq))
        assert((if (writes.map.hasValue(entry)) Some(writes.map.value(entry).toSeq) else None) == expected)
        writes.keepToBudget()
      case 1 =>
        put(writes, key, None, base.contains(key.toSeq))
        model(key.toSeq) = None
      case _ =>
        val value = randomValue(random, most)
        put(writes, key, Some(value), base.contains(key.toSeq))
        model(key.toSeq) = Some(value.toSeq)
    }
  }

  private def check(
      writes: WriteSet,
      model: mutable.Map[Seq[Byte], Option[Seq[Byte]]],
      base: mutable.Map[Seq[Byte], Seq[Byte]],
      clue: String): Unit = {
    checkLookups(writes, model, clue)
    checkScans(writes, model, clue)
    val delta = folder.resolve("delta.sst")
    val writer = new DeltaWriter(new BlockBasedTableConfig, CompressionType.LZ4_COMPRESSION)
    val outcome = writer.write(delta, Array[Byte](0, 0, 'm'), Array[Byte](1), writes)
    writer.close()
    val live = model.collect { case (key, Some(value)) => key -> value }
    assert(rows(delta).tail.toMap == live, clue)
    val removed = model.count { case (key, value) => value.isEmpty && base.contains(key) }
    val added = live.keys.count(!base.contains(_))
    assert(outcome.rowChanges.values.sum == added - removed, clue)
    assert(outcome.rows == live.size + removed, clue)
  }

  /** What a transaction leaves in memory is not much, and is what the next version has. */
  private def checkKept(
      kept: ByteMap, base: mutable.Map[Seq[Byte], Seq[Byte]], budget: MemoryBudget, clue: String): Unit = {
    assert(kept.bytes <= budget.bytesPerCache, clue)
    (0 until kept.size).foreach { entry =>
      assert(!kept.isWritten(entry), clue)
      val value = if (kept.hasValue(entry)) Some(kept.value(entry).toSeq) else None
      assert(value == base.get(kept.key(entry).toSeq), clue)
    }
  }

  private def checkLookups(
      writes: WriteSet, model: mutable.Map[Seq[Byte], Option[Seq[Byte]]], clue: String): Unit =
    model.foreach { case (key, expected) =>
      val bytes = key.toArray
      val entry = writes.find(bytes, bytes.length, hash(bytes))
      assert(entry >= 0, clue)
      assert((if (writes.map.hasValue(entry)) Some(writes.map.value(entry).toSeq) else None) == expected)
    }

  private def checkScans(writes: WriteSet, model: mutable.Map[Seq[Byte], Option[Seq[Byte]]], clue: String): Unit = {
    checkScan(writes, model, 0x8002, Array[Byte](-128, 2, 3), Array[Byte](-128, 2, 7), clue)
    (0 until 200 by 50).foreach { hash =>
      val prefix = Array[Byte](0, 1, 7, 7, 7, hash.toByte)
      checkScan(writes, model, 1, prefix, KeyCodec.behind(prefix, prefix.length), clue)
      val longer = prefix :+ 2.toByte
      checkScan(writes, model, 1, longer, KeyCodec.behind(longer, longer.length), clue)
    }
  }

  private def checkScan(
      writes: WriteSet,
      model: mutable.Map[Seq[Byte], Option[Seq[Byte]]],
      state: Int,
      lower: Array[Byte],
      upper: Array[Byte],
      clue: String): Unit = {
    val merged = new MergedCursor(writes.cursors(state, lower, upper, whole = false).toArray, _ => ())
    val found = mutable.ArrayBuffer.empty[(Seq[Byte], Option[Seq[Byte]])]
    while (merged.valid) {
      val value =
        if (merged.deleted) None
        else Some(Arrays.copyOfRange(merged.valueBase, merged.valueFrom, merged.valueFrom + merged.valueLength).toSeq)
      found += merged.key.toSeq -> value
      merged.advance()
    }
    merged.close()
    val expected = model.filter { case (key, _) =>
      Arrays.compareUnsigned(key.toArray, lower) >= 0 && Arrays.compareUnsigned(key.toArray, upper) < 0
    }
    assert(found.toMap == expected.toMap, clue)
    assert(
      found.map(_._1.toArray).sliding(2).forall(pair =>
        pair.length < 2 || Arrays.compareUnsigned(pair(0), pair(1)) < 0))
  }

  test("seals what a model holds, with exact row counts, when everything fits in memory") {
    (1 to 3).foreach(play(_, 1L << 30))
  }

  test("seals what a model holds, with exact row counts, when it spills many runs") {
    (11 to 14).foreach(play(_, 1L << 20))
  }

  test("seals what a model holds when another transaction has the near cache") {
    play(15, 1L << 30, lent = false)
    play(16, 1L << 20, lent = false)
  }

  test("leaves the next transaction what the next version has") {
    play(17, 1L << 30, rounds = 4)
    play(18, 1L << 20, rounds = 4)
  }

  test("leaves spilled runs behind only in the staging folder") {
    play(21, 1L << 20)
    val names = Files.list(folder).iterator.asScala.map(_.getFileName.toString).toSet
    assert(names == Set("staging-21-1", "delta.sst"))
  }

  test("seals what was spilled by the last write, when nothing is in memory") {
    Seq(true, false).foreach { lent =>
      val writes =
        new WriteSet(if (lent) new ByteMap else null, folder.resolve(s"last-$lent"), new Options,
          new MemoryBudget(1L << 20), Residence.none(new MemoryBudget(1L << 20)))
      var number = 0
      while (writes.runs == 0) {
        put(writes, keyOf(number), Some(new Array[Byte](1000)), inBase = false)
        number += 1
      }
      assert(writes.states.isEmpty)
      val sealing = writes.sealing()
      var found = 0
      while (sealing.valid) {
        found += 1
        sealing.advance()
      }
      sealing.close()
      assert(found == number)
      writes.close()
    }
  }

  test("forgets what was read first when it is too much, and never what was written") {
    val budget = new MemoryBudget(16L << 20)
    budget.cacheOpened()
    var rows = new ByteMap
    (1 to 12).foreach { round =>
      val writes = new WriteSet(rows, folder, new Options, budget, Residence.none(budget))
      (0 until 10000).foreach { i =>
        val key = java.nio.ByteBuffer.allocate(10).putShort(1).putInt(round).putInt(i).array
        assert(writes.find(key, 10, hash(key)) < 0)
        if (i % 10 == 0) put(writes, key, Some(key), inBase = true)
        else writes.remember(key, 10, hash(key), new Array[Byte](50), 50)
        writes.keepToBudget()
        assert(writes.heapBytes <= budget.bytesPerCache + budget.bytesPerWriteSet + (2 << 20))
      }
      assert(writes.writtenOf(1).length == 1000)
      rows = writes.close()
      assert(rows.bytes <= budget.bytesPerCache)
    }
    def kept(round: Int): Int = (0 until 10000).count { i =>
      val key = java.nio.ByteBuffer.allocate(10).putShort(1).putInt(round).putInt(i).array
      rows.find(key, 10, hash(key)) >= 0
    }
    assert(kept(12) == 10000 && kept(1) == 0)
  }

  private def extend(writes: WriteSet, key: Array[Byte], bytes: Array[Byte]): Unit = {
    val known = writes.find(key, key.length, hash(key))
    val entry = if (known >= 0) known else writes.insert(key, key.length, hash(key), inBase = false)
    writes.extend(entry, bytes, bytes.length)
  }

  private def valueOf(writes: WriteSet, key: Array[Byte]): Array[Byte] =
    writes.map.value(writes.find(key, key.length, hash(key)))

  test("a value that grows or is replaced counts once: nothing is spilled while what is there is small") {
    val writes = new WriteSet(null, folder.resolve("staging"), new Options, new MemoryBudget(1L << 20),
      Residence.none(new MemoryBudget(1L << 20)))
    val (list, other) = (keyOf(2), keyOf(3))
    (0 until 15000).foreach { i =>
      extend(writes, list, java.nio.ByteBuffer.allocate(20).putInt(i).array)
      put(writes, other, Some(new Array[Byte](10000)), inBase = false)
    }
    assert(writes.runs == 0 && writes.heapBytes < (8L << 20))
    val found = java.nio.ByteBuffer.wrap(valueOf(writes, list))
    assert(found.capacity == 15000 * 20 && (0 until 15000).forall(i => found.getInt(i * 20) == i))
    writes.close()
  }

  test("a list that has outgrown the memory is spilled a few times only, however often it grows") {
    val writes = new WriteSet(new ByteMap, folder.resolve("staging"), new Options, new MemoryBudget(1L << 20),
      Residence.none(new MemoryBudget(1L << 20)))
    (0 until 15000).foreach(i => extend(writes, keyOf(2), java.nio.ByteBuffer.allocate(1000).putInt(i).array))
    assert(writes.runs <= 8)
    val found = java.nio.ByteBuffer.wrap(valueOf(writes, keyOf(2)))
    assert(found.capacity == 15000 * 1000 && (0 until 15000).forall(i => found.getInt(i * 1000) == i))
    writes.close()
  }

  test("many runs are merged: few files are open, and scans that began before show what was there then") {
    val writes = new WriteSet(null, folder.resolve("staging"), new Options, new MemoryBudget(1L << 20),
      Residence.none(new MemoryBudget(1L << 20)))
    val model = mutable.HashMap.empty[Seq[Byte], Option[Seq[Byte]]]
    val scans = mutable.ArrayBuffer.empty[(MergedCursor, Map[Seq[Byte], Option[Seq[Byte]]])]
    val random = new Random(5)
    (0 until 330000).foreach { i =>
      val key = keyOf(random.nextInt(30000))
      val value = if (random.nextInt(5) == 0) None else Some(randomValue(random, 200))
      put(writes, key, value, inBase = false)
      model(key.toSeq) = value.map(_.toSeq)
      if (i % 100000 == 50000) {
        val cursors = writes.cursors(0x8002, KeyCodec.stateBound(0x8002), KeyCodec.stateBound(0x8003), whole = true)
        scans += new MergedCursor(cursors.toArray, _ => ()) -> model.filter(_._1.head == -128).toMap
      }
    }
    assert(writes.runs >= 20 && writes.openRuns < 16)
    val files = Files.list(folder.resolve("staging")).iterator.asScala.size
    assert(files == writes.openRuns, "merged runs leave no files")
    scans.foreach { case (scan, expected) =>
      val found = Iterator.continually(scan).takeWhile(_.valid).map { at =>
        val value = if (at.deleted) None
        else Some(Arrays.copyOfRange(at.valueBase, at.valueFrom, at.valueFrom + at.valueLength).toSeq)
        val row = at.key.toSeq -> value
        at.advance()
        row
      }.toMap
      scan.close()
      assert(found == expected)
    }
    checkLookups(writes, model, "after many spills")
    checkScans(writes, model, "after many spills")
    writes.close()
  }
}
