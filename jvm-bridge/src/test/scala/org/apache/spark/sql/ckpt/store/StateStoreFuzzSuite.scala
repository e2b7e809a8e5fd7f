package org.apache.spark.sql.ckpt.store

import java.nio.file.{Files, Path}
import java.util.concurrent.atomic.AtomicReference

import scala.collection.mutable
import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.Stores
import org.apache.spark.sql.ckpt.settings.Metrics
import org.apache.spark.sql.ckpt.transactions.SharedRuntime
import org.apache.spark.sql.execution.streaming.state._

/** Random lives of a store, each answer compared with a map: every call, encoder and kind of family, scans that stay
  * open, branches, attempts side by side, aborts, maintenance and restarts, with much memory and with so little that
  * writes are spilled.
  *
  * The same few seeds each time; `CKPT_FUZZ="--minutes 60 --seed 7"` for more, and to begin with the seed that failed.
  */
class StateStoreFuzzSuite extends AnyFunSuite with BeforeAndAfterAll {
  override def afterAll(): Unit = SharedRuntime.stop()

  private val arguments = sys.env.getOrElse("CKPT_FUZZ", "").split(" ").sliding(2).collect {
    case Array(name, value) if name.startsWith("--") => name.drop(2) -> value
  }.toMap
  private val seconds = arguments.get("minutes").fold(0.0)(_.toDouble * 30)
  private val firstSeed = arguments.get("seed").fold(1L)(_.toLong)

  for {
    (memory, isSmall, few) <- Seq(("16m", true, 5), ("256m", false, 10))
    backends <- Seq(Seq(Stores.Ours), Seq(Stores.OursInMemory), Seq(Stores.Ours, Stores.OursInMemory))
  } {
    val names = backends.map(_.name).mkString(" and ")
    test(s"a store answers as a map does, with a memory limit of $memory: $names") {
      SharedRuntime.stop()
      val end = System.nanoTime + (seconds * 1e9).toLong
      var seed = firstSeed
      var (spills, falls) = (0L, 0L)
      while (seed < firstSeed + few || System.nanoTime < end) {
        val folder = Files.createTempDirectory("fuzz")
        try {
          val life = new StoreLife(seed, folder, memory, isSmall, backends)
          life.run()
          spills += life.spills
          falls += life.falls
        } catch {
          case failure: Throwable =>
            throw new AssertionError(s"memory $memory, $names, seed $seed: CKPT_FUZZ='--seed $seed'. $failure", failure)
        } finally {
          Stores.deleteAll(folder)
        }
        seed += 1
      }
      info(s"seeds $firstSeed to ${seed - 1}, $spills runs were spilled, $falls stores fell back")
      assert(!isSmall || spills > 0)
      assert((falls > 0) == (isSmall && backends.contains(Stores.OursInMemory)))
    }
  }

  test("stores that share little memory answer as maps do, side by side") {
    SharedRuntime.stop()
    val lives = (firstSeed until firstSeed + 4).map { seed =>
      val folder = Files.createTempDirectory("fuzz")
      val life = new StoreLife(seed, folder, "16m", seed % 2 == 0, Seq(Stores.OursInMemory))
      val outcome = new AtomicReference[Throwable]
      val thread = new Thread(() =>
        try life.run()
        catch { case failure: Throwable => outcome.set(failure) })
      thread.start()
      (seed, folder, thread, outcome)
    }
    lives.foreach(_._3.join())
    lives.foreach { case (seed, folder, _, outcome) =>
      Stores.deleteAll(folder)
      if (outcome.get != null) throw new AssertionError(s"seed $seed side by side: ${outcome.get}", outcome.get)
    }
  }
}

/** The life of one store under one seed. */
private final class StoreLife(
    seed: Long, folder: Path, memory: String, isSmall: Boolean, backends: Seq[Stores.Kind]) {
  import StoreLife._
  import Stores.{Kind => _, _}

  private val random = new Random(seed)
  private val several = random.nextInt(4) > 0
  private val default = Kinds(random.nextInt(if (several) Kinds.length else Singles))
  private val mostPad = if (isSmall && random.nextBoolean()) 40000 else 200
  private val keys = 20 + random.nextInt(600)
  private var provider: StateStoreProvider = _
  private val registered = mutable.HashSet.empty[String] // with this provider
  private var history = Vector(Empty -> (Map("default" -> Rows(default)): Model))
  var spills = 0L
  var falls = 0L

  def run(): Unit = {
    open()
    try (1 to 10).foreach(_ => round())
    finally provider.close()
  }

  private def open(): Unit = {
    provider =
      start(backends(random.nextInt(backends.length)), folder, default.encoder, several, default.multiple, memory)
    registered.clear()
  }

  private def round(): Unit = {
    if (random.nextInt(6) == 0) {
      provider.close()
      open()
    }
    // A query that goes on from an older version has given up those after it.
    if (random.nextInt(5) == 0) history = history.dropRight(random.nextInt(math.min(3, history.length)))
    val (base, model) = history.last
    val attempts = Seq.fill(if (random.nextInt(3) == 0) 2 else 1)(new Attempt(base, model))
    var steps = random.nextInt(if (isSmall) 2500 else 800)
    while (steps > 0) {
      attempts(random.nextInt(attempts.length)).step()
      steps -= 1
    }
    val made = random.shuffle(attempts).flatMap(_.end())
    if (random.nextInt(3) == 0) provider.doMaintenance()
    if (made.nonEmpty) {
      history :+= made(random.nextInt(made.length))
      check()
    }
  }

  /** The newest version, read by a store of its own. */
  private def check(): Unit = {
    val (version, model) = history.last
    val reading =
      new Attempt(version, model, provider.getReadStore(version.number, version.id).asInstanceOf[StateStore])
    model.keys.foreach(reading.scanAll)
    reading.store.release()
  }

  private def padOf(number: Long): Int = (math.abs(number * 7919) % mostPad).toInt

  /** One transaction, and what it must see. */
  private final class Attempt(base: Version, from: Model, val store: StateStore) {
    def this(base: Version, from: Model) = this(base, from, provider.getStore(base.number, base.id))

    private var model = from
    private var writes = 0
    private val scans = mutable.ArrayBuffer.empty[Scan]
    // After a restart nothing is known of families but what the operator registers first.
    model.keysIterator.filter(_ != "default")
      .foreach(name => if (!registered(name) || random.nextBoolean()) register(name))

    private def register(name: String): Unit = {
      val kind = familyKind(name)
      registered += name
      store.createColFamilyIfAbsent(name, kind.encoder.keySchema, valueSchema, kind.encoder, kind.multiple, false)
    }

    private def familyKind(name: String): Kind = if (name == "default") default else Kinds(name.drop(1).toInt)
    private def anyFamily(): String = model.keys.toSeq.sorted.apply(random.nextInt(model.size))
    private def anyNumber(): Long = random.nextInt(keys / 4 + 1) - keys / 8L
    private def anyName(): String = Names(random.nextInt(Names.length))
    private def anyKey(): Key = (anyName(), anyNumber())

    private def newValue(): Long = {
      writes += 1
      seed * 1000003 + base.number * 100003 + random.nextInt(100000)
    }

    private def stored(number: Long) = value(number, padOf(number))

    def step(): Unit = {
      val name = anyFamily()
      val rows = model(name)
      random.nextInt(20) match {
        case 0 | 1 | 2 => look(name, rows, anyKey())
        case 3 | 4 => remove(name, rows, anyKey())
        case 5 | 6 => if (rows.kind.encoder == range && random.nextInt(4) == 0) deleteRange(name, rows)
        case 7 | 8 | 9 => scans += open(name, rows)
        case 10 | 11 => advance()
        case 12 => if (random.nextInt(4) == 0) family()
        case 13 => lookAtMany(name, rows)
        case _ => write(name, rows, anyKey())
      }
    }

    private def row(rows: Rows, at: Key) = key(rows.kind.encoder, at._1, at._2)

    private def update(name: String, rows: Rows, at: Key, values: Vector[Long]): Unit =
      model += name -> rows.copy(of = rows.of + (at -> values))

    private def write(name: String, rows: Rows, at: Key): Unit =
      if (!rows.kind.multiple) {
        val added = newValue()
        store.put(row(rows, at), stored(added), name)
        update(name, rows, at, Vector(added))
      } else {
        val added = Vector.fill(1 + random.nextInt(3))(newValue())
        val before = rows.of.getOrElse(at, Vector.empty)
        random.nextInt(4) match {
          case 0 =>
            store.putList(row(rows, at), added.map(stored).toArray, name)
            update(name, rows, at, added)
          case 1 =>
            store.put(row(rows, at), stored(added.head), name)
            update(name, rows, at, added.take(1))
          case 2 =>
            store.merge(row(rows, at), stored(added.head), name)
            update(name, rows, at, before :+ added.head)
          case _ =>
            store.mergeList(row(rows, at), added.map(stored).toArray, name)
            update(name, rows, at, before ++ added)
        }
      }

    private def remove(name: String, rows: Rows, at: Key): Unit = {
      store.remove(row(rows, at), name)
      model += name -> rows.copy(of = rows.of - at)
    }

    private def look(name: String, rows: Rows, at: Key): Unit = {
      val expected = rows.of.get(at)
      same(store.keyExists(row(rows, at), name), expected.isDefined, s"keyExists $at of $name")
      same(Option(store.get(row(rows, at), name)).map(number), expected.map(_.head), s"get $at of $name")
      if (rows.kind.multiple) {
        val values = store.valuesIterator(row(rows, at), name).map(number).toVector
        same(values, expected.getOrElse(Vector.empty), s"values of $at of $name")
      }
    }

    private def lookAtMany(name: String, rows: Rows): Unit = {
      val several = Seq.fill(random.nextInt(5))(anyKey())
      val found = store.multiGet(several.map(row(rows, _)).toArray, name)
      same(found.map(Option(_).map(number)).toSeq, several.map(rows.of.get(_).map(_.head)), s"multiGet of $name")
    }

    private def number(found: org.apache.spark.sql.catalyst.expressions.UnsafeRow): Long = {
      same(found.getBinary(1).length, padOf(found.getLong(0)), "the bytes of a value")
      found.getLong(0)
    }

    private def deleteRange(name: String, rows: Rows): Unit = {
      val (lower, upper) = bounds()
      store.deleteRange(key(rows.kind.encoder, "", lower), key(rows.kind.encoder, "", upper), name)
      model += name -> rows.copy(of = rows.of.filterNot { case ((_, number), _) => number >= lower && number < upper })
    }

    private def bounds(): (Long, Long) = {
      val lower = anyNumber()
      (lower, lower + random.nextInt(10) - 2)
    }

    /** Creates, drops, or drops and creates a family again. */
    private def family(): Unit = if (several) {
      val index = random.nextInt(Kinds.length)
      val name = s"f$index"
      if (model.contains(name) && random.nextInt(3) == 0) {
        same(store.removeColFamilyIfExists(name), true, s"removal of $name")
        model -= name
      } else if (!model.contains(name)) {
        same(store.removeColFamilyIfExists(name), false, s"removal of $name, which is not there")
        register(name)
        model += name -> Rows(Kinds(index))
      }
      same(store.allColumnFamilyNames, model.keySet, "the names of the families")
    }

    def scanAll(name: String): Unit = {
      val kind = familyKind(name)
      if (name != "default") register(name)
      val found = if (kind.multiple) store.iteratorWithMultiValues(name) else store.iterator(name)
      val scan = new Scan(found, model(name), _ => true, s"version ${base.number}, all of $name")
      scan.finish()
    }

    private def open(name: String, rows: Rows): Scan = {
      val kind = rows.kind
      val what = s"version ${base.number}, scan of $name (${kind.encoder.getClass.getSimpleName})"
      if (kind.hasPrefix && random.nextInt(3) > 0) {
        val prefix = anyName()
        val at = Stores.row(nameSchema, prefix)
        val found = if (kind.multiple) store.prefixScanWithMultiValues(at, name) else store.prefixScan(at, name)
        new Scan(found, rows, _._1 == prefix, what)
      } else if (kind.hasRanges && random.nextInt(3) > 0) {
        val (first, last) = bounds()
        val (lower, upper) = (Option.when(random.nextInt(4) > 0)(first), Option.when(random.nextInt(4) > 0)(last))
        val (from, to) = (lower.map(key(kind.encoder, "", _)), upper.map(key(kind.encoder, "", _)))
        val found =
          if (kind.multiple) store.rangeScanWithMultiValues(from, to, name) else store.rangeScan(from, to, name)
        new Scan(found, rows, at => lower.forall(_ <= at._2) && upper.forall(_ > at._2), s"$what from $lower to $upper")
      } else {
        new Scan(if (kind.multiple) store.iteratorWithMultiValues(name) else store.iterator(name), rows, _ => true,
          what)
      }
    }

    private def advance(): Unit = if (scans.nonEmpty) {
      val index = random.nextInt(scans.length)
      random.nextInt(5) match {
        case 0 => scans.remove(index).close()
        case 1 | 2 => scans.remove(index).finish()
        case _ => scans(index).read(random.nextInt(20))
      }
    }

    /** The version that it makes, if it does not abort. */
    def end(): Option[(Version, Model)] = {
      scans.foreach(scan => if (random.nextInt(3) > 0) scan.finish())
      if (random.nextInt(5) == 0) {
        store.abort()
        None
      } else {
        val made = commit(store)
        same(store.metrics.numKeys, model.valuesIterator.map(_.of.size).sum.toLong, "the number of keys")
        spills += store.metrics.customMetrics(Metrics("ckptSpilledRuns"))
        falls += store.metrics.customMetrics(Metrics("ckptMemoryFallbacks"))
        Some(made -> model)
      }
    }
  }

  /** An open scan, and the rows that were there when it was made. */
  private final class Scan(found: StateStoreIterator[UnsafeRowPair], rows: Rows, isIn: Key => Boolean, what: String) {
    private val seen = mutable.ArrayBuffer.empty[(Key, Long)]

    def read(most: Int): Unit = {
      var left = most
      while (left > 0 && found.hasNext) {
        val (name, number, value) = rowOf(rows.kind.encoder, found.next())
        seen += (name, number) -> value
        left -= 1
      }
    }

    def close(): Unit = found.close()

    def finish(): Unit = {
      read(Int.MaxValue)
      found.close()
      val expected = for ((at, values) <- rows.of.toVector if isIn(at); value <- values) yield at -> value
      val (missing, extra) = (expected.diff(seen), seen.toVector.diff(expected))
      if (missing.nonEmpty || extra.nonEmpty) {
        def few(rows: Vector[(Key, Long)]) = rows.take(5).map { case ((name, at), value) =>
          s"${name.take(8)} $at = $value"
        }
        throw new AssertionError(
          s"$what: of ${expected.length} rows ${missing.length} are missing, ${few(missing)}, and ${extra.length} are " +
            s"wrong, ${few(extra)}")
      }
      same(seen.toVector.groupMap(_._1)(_._2), expected.groupMap(_._1)(_._2), s"$what, the order of values")
      if (rows.kind.inOrder) same(seen.map(_._1._2).toVector, expected.map(_._1._2).sorted, s"$what, its order")
    }
  }

  private def same(found: Any, expected: Any, what: => String): Unit =
    if (found != expected)
      throw new AssertionError(s"$what: ${found.toString.take(500)}, not ${expected.toString.take(500)}")
}

private object StoreLife {
  import Stores.{Kind => _, _}

  type Key = (String, Long)
  type Model = Map[String, Rows]

  final case class Kind(encoder: KeyStateEncoderSpec, multiple: Boolean = false) {
    def hasPrefix: Boolean = encoder == prefix || encoder == timeLast
    def hasRanges: Boolean = encoder == range || encoder == timeFirst
    def inOrder: Boolean = hasRanges
  }

  final case class Rows(kind: Kind, of: Map[Key, Vector[Long]] = Map.empty)

  /** The first ones are for stores without column families. */
  val Kinds: Vector[Kind] = Vector(
    Kind(noPrefix), Kind(prefix), Kind(range), Kind(timeFirst), Kind(timeLast), Kind(noPrefix, multiple = true),
    Kind(prefix, multiple = true), Kind(range, multiple = true), Kind(timeFirst, multiple = true),
    Kind(timeLast, multiple = true))
  val Singles = 5

  /** One of them is the beginning of others, and one has more bytes than a word of a sort many times over. */
  val Names: Vector[String] = Vector("a", "ab", "abc", "b", "") ++ Vector("x", "y").map("long " * 60 + _)
}
