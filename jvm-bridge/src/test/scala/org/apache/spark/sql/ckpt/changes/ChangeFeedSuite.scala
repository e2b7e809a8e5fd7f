package org.apache.spark.sql.ckpt.changes

import java.nio.file.{Files, Path}
import java.util.UUID

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.scalatest.{BeforeAndAfterAll, BeforeAndAfterEach}
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.ckpt.{CkptException, CkptStateStoreProvider, Stores}
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.ckpt.transactions.SharedRuntime
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._

/** Change feed and replay of the provider by itself, on the same writes as Spark's RocksDB provider. */
class ChangeFeedSuite extends AnyFunSuite with BeforeAndAfterEach with BeforeAndAfterAll {
  import ChangeFeedSuite._

  private val local = Files.createTempDirectory("local")
  private var folder: Path = _
  private val opened = mutable.ArrayBuffer.empty[StateStoreProvider]

  override def beforeEach(): Unit = folder = Files.createTempDirectory("changes")

  override def afterEach(): Unit = {
    opened.foreach(_.close())
    opened.clear()
    Stores.deleteAll(folder)
  }

  override def afterAll(): Unit = {
    SharedRuntime.stop()
    LocalFolder.deleteAll(local)
  }

  /** Folders of feeds that are open in the state server. */
  private def feeds: Int = {
    val paths = Files.walk(local)
    try paths.iterator.asScala.count(_.getFileName.toString.startsWith("changes-"))
    finally paths.close()
  }

  private def start(provider: StateStoreProvider with SupportsFineGrainedReplay): Provider = {
    val conf = new SQLConf
    conf.setConfString("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    conf.setConfString("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    conf.setConfString(Settings.Prefix + "python", sys.env.getOrElse("PYTHON", "python3"))
    conf.setConfString(Settings.Prefix + "memoryLimit", "16m") // the process's; it makes large write sets spill
    conf.setConfString(Settings.Prefix + "localDir", local.toString)
    conf.setConfString(Settings.Prefix + "snapshotEveryVersions", "2")
    val hadoop = Stores.ofRun(UUID.randomUUID().toString)
    val root = folder.resolve(provider.getClass.getSimpleName).resolve("state").toString
    provider.init(
      StateStoreId(root, 0, 0, StateStoreId.DEFAULT_STORE_NAME), KeySchema, ValueSchema, Families.head._2, true,
      new StateStoreConf(conf, Map.empty), hadoop, false, None)
    opened += provider
    new Provider(provider)
  }

  /** Versions of the same writes, which are random, of a key often several in one version. */
  private def grow(provider: Provider, versions: Int, seed: Int): Unit = {
    val random = new Random(seed)
    (1 to versions).foreach { _ =>
      provider.transaction { store =>
        (1 to 60).foreach { _ =>
          val (name, _, several) = Families(random.nextInt(Families.size))
          val key = keyOf(random.nextInt(5), random.nextInt(4))
          random.nextInt(if (several) 5 else 2) match {
            case 0 if random.nextBoolean() && store.keyExists(key, name) => store.remove(key, name)
            case 0 | 1 if several =>
              store.putList(key, Array.fill(1 + random.nextInt(3))(valueOf(random.nextInt(9))), name)
            case 2 if several => store.mergeList(key, Array(valueOf(random.nextInt(9)), valueOf(1)), name)
            case _ if several => store.merge(key, valueOf(random.nextInt(9)), name)
            case _ => store.put(key, valueOf(random.nextInt(9)), name)
          }
        }
      }
    }
  }

  private def both(): (Provider, Provider) = (start(new RocksDBStateStoreProvider), start(new CkptStateStoreProvider))

  test("shows what every version has made of every key, in families of every kind") {
    val (rocks, ours) = both()
    Seq(rocks, ours).foreach(grow(_, versions = 6, seed = 7))
    Families.foreach { case (name, _, several) =>
      val expected = outcome(rocks.changes(1, 6, name), several)
      assert(expected.map(_.batch).distinct == (0L to 5L))
      val actual = ours.changes(1, 6, name)
      assert(byKey(actual) == byKey(expected), name)
      assert(actual.map(_.batch) == actual.map(_.batch).sorted)
      assert(ours.changes(3, 4, name) == actual.filter(change => Set(2L, 3L)(change.batch)))
    }
  }

  test("shows a list that grows, one that is replaced, and one that is gone") {
    val ours = start(new CkptStateStoreProvider)
    def write(work: StateStore => Unit): Unit = ours.transaction(work)
    val key = keyOf(1, 1)
    write(_.mergeList(key, Array(valueOf(1), valueOf(2)), "list"))
    write(_.merge(key, valueOf(3), "list"))
    write(_.putList(key, Array(valueOf(1), valueOf(9)), "list"))
    write(_.putList(key, Array(valueOf(1), valueOf(9)), "list"))
    write(_.remove(key, "list"))
    val shown = ours.changes(1, 5, "list").map(change => (change.batch, change.kind, change.value))
    assert(shown == Seq(
      (0, "append", 1), (0, "append", 2),
      (1, "append", 3),
      (2, "update", 1), (2, "append", 9),
      (3, "update", 1), (3, "append", 9),
      (4, "delete", -1)))
  }

  test("shows the rows of a family that a version removes, and makes anew, as gone and come") {
    val ours = start(new CkptStateStoreProvider)
    ours.transaction(store => (1 to 3).foreach(i => store.put(keyOf(i, i), valueOf(i), "plain")))
    ours.transaction { store =>
      store.removeColFamilyIfExists("plain")
      ours.register(store, Families.head)
      store.put(keyOf(9, 9), valueOf(9), "plain")
    }
    val shown = ours.changes(1, 2, "plain").filter(_.batch == 1)
    assert(shown.last == Change(1, "update", "9,9", 9))
    assert(shown.init.toSet == (1 to 3).map(i => Change(1, "delete", s"$i,$i", -1)).toSet && shown.size == 4)
  }

  test("reads a feed of many rows to its end, and one that is left early, and leaves no file behind") {
    val ours = start(new CkptStateStoreProvider)
    val rows = 30000
    ours.transaction(store => (1 to rows).foreach(i => store.put(keyOf(i, i), valueOf(i), "plain")))
    ours.transaction(store => (1 to rows by 3).foreach(i => store.remove(keyOf(i, i), "plain")))
    val shown = ours.changes(1, 2, "plain")
    assert(shown.count(_.kind == "update") == rows && shown.count(_.kind == "delete") == rows / 3)
    val left = ours.reader(1, 2, "plain")
    assert(left.hasNext && feeds == 1)
    left.closeIfNeeded()
    assert(feeds == 0)
  }

  test("refuses a family that nobody has registered, and a layout that the rows do not have") {
    val ours = start(new CkptStateStoreProvider)
    ours.transaction(_.put(keyOf(1, 1), valueOf(1), "range"))
    assert(intercept[Exception](ours.changes(1, 1, "nowhere")).getMessage.contains("nowhere"))
    val other = start(new CkptStateStoreProvider)
    other.at = ours.at
    val wrong = Families.map { case (name, encoder, several) =>
      (name, if (name == "range") NoPrefix else encoder, several)
    }
    other.registerAll(wrong)
    val failure = intercept[CkptException](other.changes(1, 1, "range"))
    assert(failure.getMessage.contains("'range'") && failure.getMessage.contains("ordered"))
  }

  test("replays a version from one snapshot, and names the existing ones if there is no such snapshot") {
    val (rocks, ours) = both()
    Seq(rocks, ours).foreach(grow(_, versions = 3, seed = 3))
    ours.provider.doMaintenance() // of version 2, the last that a transaction began on
    Seq(rocks, ours).foreach(grow(_, versions = 2, seed = 4))
    val fresh = start(new CkptStateStoreProvider)
    fresh.at = ours.at
    val replayed = fresh.replay(2, 5)
    val expected = ours.provider.getReadStore(5, ours.at(5))
    Families.foreach { case (name, _, several) =>
      assert(contents(replayed, name, several) == contents(expected, name, several) && contents(expected, name,
        several).nonEmpty)
    }
    Seq(replayed, expected).foreach(_.release())
    val failure = intercept[CkptException](fresh.replay(3, 5))
    assert(failure.getMessage.contains("no snapshot of batch 2 ") && failure.getMessage.contains("of batches 1"))
    intercept[CkptException](fresh.replay(0, 5))
  }
}

object ChangeFeedSuite {
  private val KeySchema = new StructType().add("at", LongType).add("number", LongType)
  private val ValueSchema = new StructType().add("value", LongType)
  private val NoPrefix = NoPrefixKeyStateEncoderSpec(KeySchema)
  private val (toKey, toValue) = (UnsafeProjection.create(KeySchema), UnsafeProjection.create(ValueSchema))

  /** Name, encoder of the key, and whether a key has several values. */
  private val Families: Seq[(String, KeyStateEncoderSpec, Boolean)] = Seq(
    ("plain", NoPrefix, false),
    ("prefix", PrefixKeyScanStateEncoderSpec(KeySchema, 1), false),
    ("range", RangeKeyScanStateEncoderSpec(KeySchema, Seq(0)), false),
    ("list", NoPrefix, true))

  private case class Change(batch: Long, kind: String, key: String, value: Long)

  private def keyOf(at: Long, number: Long): UnsafeRow = toKey(InternalRow(at, number)).copy()
  private def valueOf(value: Long): UnsafeRow = toValue(InternalRow(value)).copy()

  private def contents(store: ReadStateStore, name: String, several: Boolean): Set[String] = {
    val rows = if (several) store.iteratorWithMultiValues(name) else store.iterator(name)
    try rows.map(pair => s"${pair.key.getLong(0)},${pair.key.getLong(1)}=${pair.value.getLong(0)}").toSet
    finally rows.close()
  }

  /** The changes of each key in each batch, in their order. */
  private def byKey(feed: Seq[Change]): Map[(Long, String), Seq[(String, Long)]] =
    feed.groupMap(change => (change.batch, change.key))(change => (change.kind, change.value))

  /** What each batch has made of each key, without the writes on the way there. */
  private def outcome(feed: Seq[Change], several: Boolean): Seq[Change] = {
    val values = mutable.HashMap.empty[String, Vector[Long]].withDefaultValue(Vector.empty)
    feed.groupBy(_.batch).toSeq.sortBy(_._1).flatMap { case (batch, changes) =>
      val before = values.clone()
      changes.foreach { change =>
        values(change.key) = change.kind match {
          case "append" => values(change.key) :+ change.value
          case "update" => Vector(change.value)
          case "delete" => Vector.empty
        }
      }
      changes.map(_.key).distinct.flatMap { key =>
        val (old, now) = (before.getOrElse(key, Vector.empty), values(key))
        if (now.isEmpty) {
          if (old.isEmpty) Nil else Seq(Change(batch, "delete", key, -1))
        } else if (several && now.size > old.size && now.startsWith(old)) {
          now.drop(old.size).map(Change(batch, "append", key, _))
        } else {
          Change(batch, "update", key, now.head) +: now.tail.map(Change(batch, "append", key, _))
        }
      }
    }
  }

  /** A provider that remembers the ids of its versions. */
  private final class Provider(val provider: StateStoreProvider with SupportsFineGrainedReplay) {
    var at: Map[Long, Option[String]] = Map(0L -> None)

    def register(store: ReadStateStore, family: (String, KeyStateEncoderSpec, Boolean)): Unit = store match {
      case writable: StateStore =>
        writable.createColFamilyIfAbsent(family._1, KeySchema, ValueSchema, family._2,
          useMultipleValuesPerKey = family._3)
      case other => throw new IllegalStateException(s"$other")
    }

    def transaction(work: StateStore => Unit): Unit = {
      val version = at.keys.max
      val store = provider.getStore(version, at(version))
      Families.foreach(register(store, _))
      work(store)
      store.commit()
      at += (version + 1) -> store.getStateStoreCheckpointInfo().stateStoreCkptId
    }

    def registerAll(families: Seq[(String, KeyStateEncoderSpec, Boolean)]): Unit = {
      val version = at.keys.max
      val store = provider.getStore(version, at(version))
      families.foreach(register(store, _))
      store.abort()
    }

    def reader(first: Long, last: Long, family: String) =
      provider.getStateStoreChangeDataReader(first, last, Some(family), at(last))

    def changes(first: Long, last: Long, family: String): Seq[Change] = {
      val reading = reader(first, last, family)
      try {
        reading.map { case (kind, key, value, batch) =>
          Change(
            batch, RecordType.getRecordTypeAsString(kind), s"${key.getLong(0)},${key.getLong(1)}",
            if (value == null) -1 else value.getLong(0))
        }.toList
      } finally {
        reading.closeIfNeeded()
      }
    }

    def replay(snapshot: Long, end: Long): ReadStateStore = {
      registerAll(Families)
      provider.replayReadStateFromSnapshot(snapshot, end, at.getOrElse(snapshot, None), at(end))
    }
  }
}
