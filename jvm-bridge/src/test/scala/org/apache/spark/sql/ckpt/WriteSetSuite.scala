package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path}
import java.util.Arrays

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.rocksdb.{BlockBasedTableConfig, CompressionType, Options, ReadOptions, RocksDB, SstFileReader}
import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

class WriteSetSuite extends AnyFunSuite with BeforeAndAfterEach {
  private var folder: Path = _

  override def beforeEach(): Unit = {
    RocksDB.loadLibrary()
    folder = Files.createTempDirectory("write-set")
  }

  override def afterEach(): Unit = Readers.deleteFolder(folder)

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

  /** Random writes over few keys of two states, some of them in the base version, against a map. */
  private def play(seed: Int, limit: Long): Unit = {
    val random = new Random(seed)
    val writes = new WriteSet(folder.resolve(s"staging-$seed"), new Options, new MemoryBudget(limit))
    val inBase = mutable.HashSet.empty[Seq[Byte]]
    val model = mutable.HashMap.empty[Seq[Byte], Option[Seq[Byte]]]
    (1 to 30000).foreach { _ =>
      val number = random.nextInt(4000)
      val key = Array[Byte](0, (1 + number % 2).toByte, (number >> 8).toByte, number.toByte, 9)
      if (number % 3 == 0) inBase += key.toSeq
      val hash = ByteMap.hash(key, key.length)
      val entry = writes.findOrInsert(key, key.length, hash)
      writes.map.mark(entry, if (inBase(key.toSeq)) WriteSet.InBase else WriteSet.NotInBase)
      val first = !writes.map.isWritten(entry)
      if (random.nextInt(3) == 0) {
        writes.map.delete(entry)
        model(key.toSeq) = None
      } else {
        val value = new Array[Byte](random.nextInt(100))
        random.nextBytes(value)
        writes.map.put(entry, value, 0, value.length)
        model(key.toSeq) = Some(value.toSeq)
      }
      writes.written(entry, first)
    }
    if (limit < (10 << 20)) assert(writes.runs > 0, "the write set was meant to spill")
    checkLookups(writes, model, seed)
    checkScan(writes, model, seed)
    val delta = folder.resolve(s"delta-$seed.sst")
    val writer = new DeltaWriter(new BlockBasedTableConfig, CompressionType.LZ4_COMPRESSION)
    val outcome = writer.write(delta, Array[Byte](0, 0, 'm'), Array[Byte](1), writes)
    val live = model.collect { case (key, Some(value)) => key -> value }
    assert(rows(delta).tail.toMap == live, s"seed $seed")
    val removed = model.count { case (key, value) => value.isEmpty && inBase(key) }
    val added = live.keys.count(!inBase(_))
    assert(outcome.rowChanges.values.sum == added - removed, s"seed $seed")
    writes.close()
  }

  private def checkLookups(writes: WriteSet, model: mutable.Map[Seq[Byte], Option[Seq[Byte]]], seed: Int): Unit =
    model.foreach { case (key, expected) =>
      val bytes = key.toArray
      val entry = writes.find(bytes, bytes.length, ByteMap.hash(bytes, bytes.length))
      assert(entry >= 0, s"seed $seed")
      assert((if (writes.map.isDeleted(entry)) None else Some(writes.map.value(entry).toSeq)) == expected)
    }

  private def checkScan(writes: WriteSet, model: mutable.Map[Seq[Byte], Option[Seq[Byte]]], seed: Int): Unit = {
    val (lower, upper) = (Array[Byte](0, 2, 3), Array[Byte](0, 2, 7))
    val merged = new MergedCursor(writes.cursors(2, lower, upper, whole = false).toArray, _ => ())
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
    assert(found.toMap == expected.toMap, s"seed $seed")
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

  test("leaves spilled runs behind only in the staging folder") {
    play(21, 1L << 20)
    val names = Files.list(folder).iterator.asScala.map(_.getFileName.toString).toSet
    assert(names == Set("staging-21", "delta-21.sst"))
  }
}
