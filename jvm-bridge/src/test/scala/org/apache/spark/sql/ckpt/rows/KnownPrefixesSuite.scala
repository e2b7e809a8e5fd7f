package org.apache.spark.sql.ckpt.rows

import java.nio.file.{Files, Path}

import scala.collection.immutable.TreeMap
import scala.util.Random

import org.rocksdb.{Options, RocksDB}
import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.MemoryBudget
import org.apache.spark.unsafe.Platform

class KnownPrefixesSuite extends AnyFunSuite with BeforeAndAfterEach {
  private type Rows = TreeMap[Seq[Int], Int] // bytes of the key as unsigned numbers, size of the value
  private val State = 1
  private var folder: Path = _

  override def beforeEach(): Unit = {
    RocksDB.loadLibrary()
    folder = Files.createTempDirectory("prefixes")
  }

  override def afterEach(): Unit = LocalFolder.deleteAll(folder)

  /** Prefixes of two lengths, some of which share their hash. */
  private def prefixOf(number: Int): Array[Byte] =
    if (number % 4 == 3) Array[Byte](0, 1, 7, 7, 7, (number / 4).toByte, 1)
    else Array[Byte](0, 1, 7, 7, 7, (number / 4).toByte, 2, number.toByte)

  private def unsigned(bytes: Array[Byte]): Seq[Int] = bytes.toSeq.map(_ & 0xff)
  private def behind(prefix: Array[Byte]): Array[Byte] = prefix.init :+ (prefix.last + 1).toByte
  private def under(rows: Rows, prefix: Array[Byte]): Rows = rows.filter(_._1.startsWith(unsigned(prefix)))

  private final class Stored(rows: Rows) extends Cursor {
    private var left = rows.toSeq
    override def valid: Boolean = left.nonEmpty
    override def key: Array[Byte] = left.head._1.map(_.toByte).toArray
    override def deleted: Boolean = false
    override def wasThere: Boolean = true
    override def valueBase: Array[Byte] = new Array[Byte](left.head._2)
    override def valueFrom: Int = 0
    override def valueLength: Int = left.head._2
    override def advance(): Unit = left = left.tail
    override def close(): Unit = left = Nil
  }

  /** A transaction on `base`, without a database. */
  private final class Txn(lent: ByteMap, base: Rows, budget: MemoryBudget, name: String) {
    val writes = new WriteSet(lent, folder.resolve(name), new Options, budget, Residence.none(budget))
    val prefixes = new KnownPrefixes(writes)
    var scansOfBase = 0

    def scan(prefix: Array[Byte], most: Int = Int.MaxValue): Seq[(Seq[Int], Int)] = {
      val known = prefixes.rows(State, prefix, _ => ())
      val cursor = if (known != null) known
      else {
        scansOfBase += 1
        val recorded = prefixes.recording(prefix, new Stored(under(base, prefix)))
        new MergedCursor((writes.cursors(State, prefix, behind(prefix), whole = false) :+ recorded).toArray, _ => ())
      }
      val found = Iterator.continually(cursor).takeWhile(_.valid).take(most).flatMap { at =>
        val row = if (at.deleted) None else Some(unsigned(at.key) -> at.valueLength)
        at.advance()
        row
      }.toList
      cursor.close()
      found
    }

    def write(key: Array[Byte], size: Option[Int]): Unit = {
      val hash = ByteMap.hash(key, key.length)
      val known = writes.find(key, key.length, hash)
      val entry = if (known >= 0) known
      else {
        val inBase = base.contains(unsigned(key))
        if (prefixes.cover(key, key.length)) assert(!inBase, "a row of a known prefix is in memory")
        writes.insert(key, key.length, hash, inBase)
      }
      size match {
        case Some(bytes) =>
          writes.put(entry, new Array[Byte](bytes), Platform.BYTE_ARRAY_OFFSET, bytes, overwrites = true)
        case None => writes.delete(entry)
      }
    }
  }

  private def txn(base: Rows, lent: ByteMap = new ByteMap, limit: Long = 1L << 30, name: String = "one"): Txn =
    new Txn(lent, base, new MemoryBudget(limit), name)

  private def rowsOf(keys: (Array[Byte], Int)*): Rows = TreeMap.from(keys.map { case (key, size) =>
    unsigned(key) -> size
  })(
    Ordering.Implicits.seqOrdering[Seq, Int])

  test("scans are as a model says over many transactions, with little and with much memory") {
    for (seed <- 1 to 2; limit <- Seq(64L << 10, 1L << 20, 1L << 30)) {
      val random = new Random(seed)
      var base = rowsOf()
      var rows = new ByteMap
      var (scans, scansOfBase) = (0, 0)
      (1 to 20).foreach { round =>
        val txn = new Txn(rows, base, new MemoryBudget(limit), s"$seed-$limit-$round")
        var now = base
        (1 to 800).foreach { _ =>
          val prefix = prefixOf(random.nextInt(60))
          val key = prefix :+ random.nextInt(5).toByte
          random.nextInt(5) match {
            case 0 =>
              txn.write(key, None)
              now -= unsigned(key)
            case 1 =>
              val size = random.nextInt(100)
              txn.write(key, Some(size))
              now += unsigned(key) -> size
            case 2 => txn.scan(prefix, most = 1)
            case _ =>
              scans += 1
              assert(txn.scan(prefix) == under(now, prefix).toList, s"seed $seed, limit $limit, round $round")
          }
        }
        scansOfBase += txn.scansOfBase
        if (random.nextInt(4) == 0) {
          txn.writes.close() // dropped: its rows go with it
          rows = new ByteMap
        } else {
          txn.writes.seal()
          rows = txn.writes.close()
          base = now
        }
      }
      if (limit == (1L << 30)) assert(scansOfBase < scans / 2, "what was read is not read again")
    }
  }

  test("a prefix is known from its first whole scan on, also to the next transaction, and without rows as well") {
    val base = rowsOf((prefixOf(0) :+ 1.toByte) -> 5)
    val first = txn(base)
    assert(first.scan(prefixOf(0)).length == 1 && first.scan(prefixOf(1)).isEmpty && first.scansOfBase == 2)
    first.write(prefixOf(1) :+ 9.toByte, Some(3))
    assert(first.scan(prefixOf(1)) == Seq(unsigned(prefixOf(1) :+ 9.toByte) -> 3) && first.scansOfBase == 2)
    val second = txn(base ++ rowsOf((prefixOf(1) :+ 9.toByte) -> 3), first.writes.close(), name = "two")
    assert(second.scan(prefixOf(0)).length == 1 && second.scan(prefixOf(1)).length == 1 && second.scansOfBase == 0)
  }

  test("a scan that was not read to its end, and one of many rows or of large ones, makes nothing known") {
    val many = (0 until 100).map(last => (prefixOf(0) :+ last.toByte) -> 1)
    val base = rowsOf(many :+ ((prefixOf(1) :+ 1.toByte) -> (1 << 20)) :+ ((prefixOf(2) :+ 1.toByte) -> 1): _*)
    val one = txn(base)
    assert(one.scan(prefixOf(0)).length == 100 && one.scan(prefixOf(0)).length == 100)
    assert(one.scan(prefixOf(1)).length == 1 && one.scan(prefixOf(1)).length == 1)
    assert(one.scan(prefixOf(2), most = 0).isEmpty && one.scan(prefixOf(2)).length == 1)
    assert(one.scansOfBase == 6)
  }

  test("a scan shows the rows as they were when it began") {
    val base = rowsOf((prefixOf(0) :+ 1.toByte) -> 5, (prefixOf(0) :+ 2.toByte) -> 6)
    val one = txn(base)
    one.scan(prefixOf(0))
    val cursor = one.prefixes.rows(State, prefixOf(0), _ => ())
    one.write(prefixOf(0) :+ 2.toByte, Some(9))
    one.write(prefixOf(0) :+ 3.toByte, Some(9))
    cursor.advance()
    assert(cursor.valueLength == 6)
    cursor.advance()
    assert(!cursor.valid)
    assert(one.scan(prefixOf(0)).map(_._2) == Seq(5, 9, 9))
  }

  test("nothing is known without a near cache, nor once writes were spilled") {
    val base = rowsOf((prefixOf(0) :+ 1.toByte) -> 5)
    val without = txn(base, lent = null)
    assert(without.scan(prefixOf(0)).length == 1 && without.scan(prefixOf(0)).length == 1 && without.scansOfBase == 2)
    val small = txn(base, limit = 16L << 10)
    small.scan(prefixOf(0))
    (0 until 20000).foreach(n => small.write(Array[Byte](0, 1, 9, 9, (n >> 8).toByte, n.toByte, 1), Some(50)))
    assert(small.writes.runs > 0)
    small.scan(prefixOf(0))
    assert(small.scan(prefixOf(0)).length == 1 && small.scansOfBase == 3)
  }
}
