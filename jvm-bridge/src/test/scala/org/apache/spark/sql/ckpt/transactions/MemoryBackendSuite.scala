package org.apache.spark.sql.ckpt.transactions

import java.nio.file.{Files, Path}

import scala.collection.mutable

import org.scalatest.{BeforeAndAfterAll, BeforeAndAfterEach}
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.{CkptStateStoreProvider, Stores}
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.execution.streaming.state._

/** What only the memory backend has: where rows are read from, the memory that stores share, and falling back. Stores of
  * one executor share 8 MiB here: half of the least `memoryLimit`.
  */
class MemoryBackendSuite extends AnyFunSuite with BeforeAndAfterEach with BeforeAndAfterAll {
  import Stores._

  private var folder: Path = _
  private val started = mutable.ArrayBuffer.empty[StateStoreProvider]

  override def beforeEach(): Unit = {
    SharedRuntime.stop()
    folder = Files.createTempDirectory("memory")
  }

  override def afterEach(): Unit = {
    started.foreach(_.close())
    started.clear()
    LocalFolder.deleteAll(folder)
  }

  override def afterAll(): Unit = SharedRuntime.stop()

  private def open(name: String, kind: Kind = OursInMemory, encoder: KeyStateEncoderSpec = noPrefix) = {
    val made = Stores.start(kind, folder.resolve(name), encoder).asInstanceOf[CkptStateStoreProvider]
    started += made
    made
  }

  private def next(provider: StateStoreProvider, base: Version)(work: StateStore => Unit): (Version, Metrics) = {
    val store = provider.getStore(base.number, base.id)
    work(store)
    val made = commit(store)
    made -> new Metrics(store)
  }

  private final class Metrics(store: StateStore) {
    private val all = store.metrics.customMetrics.map { case (metric, value) => metric.name -> value }
    def apply(name: String): Long = all(name)
    def residentBytes: Long = all("ckptMemoryBytes")
    def fellBack: Boolean = all("ckptMemoryFallbacks") == 1
    def fromDatabase: Long = all("ckptCacheMisses") + all("ckptExistenceReads")
  }

  private def fill(store: StateStore, numbers: Range, pad: Int = 1000): Unit =
    numbers.foreach(number => store.put(key("a", number), value(number, pad)))

  private def contents(provider: StateStoreProvider, base: Version): Map[Long, Long] = {
    val store = provider.getReadStore(base.number, base.id)
    try rows(noPrefix, store.iterator()).map(row => row._2 -> row._3).toMap
    finally store.release()
  }

  private def numbers(range: Range): Map[Long, Long] = range.map(number => number.toLong -> number.toLong).toMap

  test("a store answers from memory alone, also for keys that it does not have") {
    val provider = open("a")
    val (one, _) = next(provider, Empty)(fill(_, 0 until 100))
    val (_, metrics) = next(provider, one) { store =>
      assert(store.get(key("a", 7)).getLong(0) == 7 && store.get(key("b", 7)) == null)
      store.put(key("b", 8), value(8))
      store.remove(key("b", 9))
      assert(rows(noPrefix, store.iterator()).length == 101)
    }
    assert(metrics.fromDatabase == 0 && metrics("ckptCatchUpTimeMs") == 0)
    assert(metrics.residentBytes > 100000 && !metrics.fellBack)
  }

  test("a store that is opened anew reads its version once, and has all of it in memory then") {
    val (one, _) = next(open("a"), Empty)(fill(_, 0 until 1000))
    started.head.close()
    val again = open("a")
    val (two, metrics) = next(again, one)(_.put(key("b", 1), value(1)))
    assert(metrics.residentBytes > 1000000 && metrics.fromDatabase == 0)
    assert(contents(again, two) == numbers(0 until 1000) + (1L -> 1L))
  }

  test("a store that is only written to, as that of a keyed operator, is not read into memory") {
    val (one, _) = next(open("a"), Empty)(fill(_, 0 until 1000))
    started.head.close()
    val (_, metrics) = next(open("a"), one)(_ => ())
    assert(metrics.residentBytes == 0)
  }

  test("a retry, and a return to an older version, find that version, and not the one in memory") {
    val provider = open("a")
    val (one, _) = next(provider, Empty)(fill(_, 0 until 10))
    val (two, _) = next(provider, one)(fill(_, 10 until 20))
    val lost = provider.getStore(two.number, two.id)
    fill(lost, 20 until 30)
    lost.abort()
    assert(contents(provider, two) == numbers(0 until 20))
    val (other, _) = next(provider, one)(fill(_, 30 until 40))
    assert(contents(provider, other) == numbers(0 until 10) ++ numbers(30 until 40))
    assert(contents(provider, two) == numbers(0 until 20))
    assert(contents(provider, one) == numbers(0 until 10))
  }

  test("a store that outgrows its memory in a batch goes on with RocksDB, and loses nothing") {
    val provider = open("a")
    val (one, first) = next(provider, Empty)(fill(_, 0 until 4000))
    assert(!first.fellBack)
    val store = provider.getStore(one.number, one.id)
    val scan = store.iterator()
    assert(scan.hasNext)
    fill(store, 4000 until 9000)
    store.remove(key("a", 1))
    (2 until 4000).foreach(number => assert(store.get(key("a", number)).getLong(0) == number))
    assert(rows(noPrefix, scan).length == 4000, "a scan shows the rows at its beginning")
    val two = commit(store)
    val metrics = new Metrics(store)
    assert(metrics.fellBack && metrics.residentBytes == 0 && metrics.fromDatabase > 0)
    assert(contents(provider, two) == numbers(0 until 9000) - 1L)
    val (_, later) = next(provider, two)(_.put(key("a", 1), value(1)))
    assert(later.fellBack)
  }

  test("a store falls back while another attempt has moved the database on") {
    val provider = open("a")
    val (one, _) = next(provider, Empty)(fill(_, 0 until 4000))
    val attempt = provider.getStore(one.number, one.id) // has the rows in memory
    val (two, _) = next(provider, one)(store => (0 until 4000).foreach(n => store.remove(key("a", n))))
    assert(contents(provider, two).isEmpty)
    fill(attempt, 4000 until 9000)
    (0 until 4000).foreach(number => assert(attempt.get(key("a", number)).getLong(0) == number))
    val other = commit(attempt)
    assert(new Metrics(attempt).fellBack)
    assert(contents(provider, other) == numbers(0 until 9000))
  }

  test("values that are replaced and rows that are removed take no memory") {
    val provider = open("a")
    var (version, metrics) = next(provider, Empty)(fill(_, 0 until 2000))
    (1 to 10).foreach { round =>
      val (made, at) = next(provider, version) { store =>
        (0 until 2000).foreach(n => store.put(key("a", n), value(n, 1000 + round)))
        fill(store, 10000 * round until 10000 * round + 2000)
        (10000 * round until 10000 * round + 2000).foreach(n => store.remove(key("a", n)))
      }
      version = made
      metrics = at
    }
    assert(!metrics.fellBack && metrics.residentBytes < (6 << 20))
    assert(contents(provider, version) == numbers(0 until 2000))
  }

  test("stores of one executor share the memory: the one that needs more falls back, and the others stay") {
    val (small, large) = (open("small"), open("large"))
    val (one, _) = next(small, Empty)(fill(_, 0 until 2000))
    val (_, grown) = next(large, Empty)(fill(_, 0 until 7000))
    assert(grown.fellBack)
    val (_, kept) = next(small, one)(fill(_, 0 until 10))
    assert(!kept.fellBack && kept.residentBytes > (2 << 20))
  }

  test("the memory of a store that is closed is free for others") {
    (1 to 5).foreach { number =>
      val provider = open(s"store $number")
      val (_, metrics) = next(provider, Empty)(fill(_, 0 until 5000))
      assert(!metrics.fellBack)
      provider.close()
    }
  }

  test("a store that is closed during a transaction gives its memory back, and what is read stays right") {
    val provider = open("a")
    val (one, _) = next(provider, Empty)(fill(_, 0 until 2000))
    val reading = provider.getStore(one.number, one.id)
    provider.close()
    assert((0 until 2000).forall(number => reading.get(key("a", number)).getLong(0) == number))
    reading.abort()
    assert(SharedRuntime.get(provider.served.settings).budget.residentBytes == 0)
  }

  /** The views of databases that are open in this process. */
  private def views(provider: CkptStateStoreProvider, at: Version): Int = {
    val txn = provider.begin(at.number, at.id)
    val local = Iterator.iterate(Path.of(txn.begun.path))(_.getParent).find(_.endsWith("server")).get.getParent
    provider.transactions.end(txn)
    val found = Option(local.resolve("readers").toFile.list).fold(0)(_.length)
    found
  }

  for (kind <- Seq(Ours, OursInMemory)) {
    test(s"${kind.name}: transactions that read nothing leave no more than one view of the database open") {
      val provider = open("a", kind)
      var version = Empty
      (1 to 5).foreach(number => version = next(provider, version)(_.put(key("a", number), value(number)))._1)
      (1 to 5).foreach(_ => version = next(provider, version)(_ => ())._1)
      assert(views(provider, version) == (if (kind == Ours) 1 else 0))
    }
  }

  test("ordered rows are scanned in order over many versions, also after many of them were removed") {
    val provider = open("a", encoder = range)
    var version = Empty
    var expected = Vector.empty[Long]
    (0 until 8).foreach { round =>
      version = next(provider, version) { store =>
        (0 until 500).foreach(n => store.put(key(range, "a", (n * 7919L) % 500 + round * 500), value(n)))
        (round * 500 until round * 500 + 400).foreach(n => store.remove(key(range, "a", n)))
        val found = rows(range, store.rangeScan(None, Some(key(range, "", round * 500L + 450)))).map(_._2)
        expected = expected ++ (round * 500L + 400 until round * 500L + 500)
        assert(found == expected.filter(_ < round * 500L + 450))
      }._1
    }
    val store = provider.getReadStore(version.number, version.id)
    assert(rows(range, store.iterator()).map(_._2) == expected)
    store.release()
  }
}
