package org.apache.spark.sql.ckpt.store

import org.apache.spark.sql.ckpt.Stores
import org.apache.spark.sql.execution.streaming.state._

/** Questions about rows of one family. */
private[store] object RowProbes {
  import Probes._
  import Stores._

  private val Values: Seq[Probe] = Seq(
    Probe("a row that was put is read, and one that was removed is not", "10 null true false")(onStore { store =>
      store.put(key("a", 1), value(10))
      store.put(key("b", 1), value(20))
      store.remove(key("b", 1))
      val (a, b) = (store.get(key("a", 1)), store.get(key("b", 1)))
      s"${a.getLong(0)} $b ${store.keyExists(key("a", 1))} ${store.keyExists(key("b", 1))}"
    }),
    Probe("a removal of what is not there is no error", "null")(onStore { store =>
      store.remove(key("a", 1))
      store.get(key("a", 1))
    }),
    Probe("the next version has what was committed", "1=1") { provider =>
      val one = next(provider, Empty)(_.put(key("a", 1), value(1)))
      read(provider, one)(store => numbers(noPrefix, store.iterator()))
    },
    Probe("what was aborted is gone", "1=1") { provider =>
      val one = next(provider, Empty)(_.put(key("a", 1), value(1)))
      val lost = provider.getStore(one.number, one.id)
      lost.put(key("a", 1), value(2))
      lost.put(key("b", 2), value(2))
      lost.abort()
      read(provider, one)(store => numbers(noPrefix, store.iterator()))
    },
    Probe("multiGet answers in order, null where there is no row", "1 null 2")(onStore { store =>
      store.put(key("a", 1), value(1))
      store.put(key("c", 1), value(2))
      val found = store.multiGet(Array(key("a", 1), key("b", 1), key("c", 1)), "default")
      found.map(row => if (row == null) "null" else row.getLong(0).toString).mkString(" ")
    }),
    Probe("multiGet answers what was there when it was called", "1")(onStore { store =>
      store.put(key("a", 1), value(1))
      val found = store.multiGet(Array(key("a", 1)), "default")
      store.put(key("a", 1), value(2))
      found.map(_.getLong(0)).mkString(" ")
    }),
    Probe("a change of a row that was read changes nothing that is stored", "1 1 1")(provider => {
      val one = next(provider, Empty) { store =>
        store.put(key("a", 1), value(1))
        store.get(key("a", 1)).setLong(0, 99)
      }
      // The second one may find what the first has kept in memory.
      val read = Seq.fill(2) {
        Probes.read(provider, one) { store =>
          store.get(key("a", 1)).setLong(0, 99)
          store.get(key("a", 1)).getLong(0)
        }
      }
      val two = next(provider, one)(_.get(key("a", 1)).setLong(0, 99))
      s"${read.mkString(" ")} ${Probes.read(provider, two)(_.get(key("a", 1)).getLong(0))}"
    }),
    Probe("a change of the rows of a scan changes nothing that is stored", "1=1 2=2", prefix)(provider => {
      val one = next(provider, Empty)(store => (1 to 2).foreach(i => store.put(key("a", i), value(i))))
      read(provider, one) { store =>
        Seq.fill(2)(store.prefixScan(row(nameSchema, "a"))).foreach(spoil)
        spoil(store.iterator())
        numbers(prefix, store.prefixScan(row(nameSchema, "a")))
      }
    }),
    Probe("a change of the rows of a whole scan changes nothing that is stored", "1=1 2=2 2")(provider => {
      val store = provider.getStore(0, None)
      (1 to 2).foreach(i => store.put(key("a", i), value(i)))
      spoil(store.iterator())
      val found = sorted(numbers(noPrefix, store.iterator()))
      store.commit()
      s"$found ${store.metrics.numKeys}"
    }),
    Probe("a row that was read is as it was after a write", "1")(onStore { store =>
      store.put(key("a", 1), value(1))
      val found = store.get(key("a", 1))
      store.put(key("a", 1), value(2))
      found.getLong(0)
    }))

  /** Writes into all rows of a scan. */
  private def spoil(found: StateStoreIterator[UnsafeRowPair]): Unit =
    try found.foreach { pair =>
        pair.key.setLong(1, 50)
        pair.value.setLong(0, 99)
      }
    finally found.close()

  private val Nulls: Seq[Probe] = Seq(
    Probe("put of a null value", "IllegalArgumentException")(onStore(_.put(key("a", 1), null))),
    Probe("put of a null key", "IllegalStateException")(onStore(_.put(null, value(1)))),
    Probe("get of a null key", "IllegalStateException")(onStore(_.get(null))),
    Probe("keyExists of a null key", "IllegalStateException")(onStore(_.keyExists(null))),
    Probe("remove of a null key", "IllegalStateException")(onStore(_.remove(null))),
    Probe("merge of a null value", "IllegalArgumentException", families = true, multiple = true)(
      onStore(_.merge(key("a", 1), null))),
    Probe("merge of a null key", "IllegalStateException", families = true, multiple = true)(
      onStore(_.merge(null, value(1)))),
    Probe("mergeList with a null value", "IllegalArgumentException", families = true, multiple = true)(
      onStore(_.mergeList(key("a", 1), Array(value(1), null)))),
    Probe("putList of null", "IllegalArgumentException", families = true, multiple = true)(
      onStore(_.putList(key("a", 1), null))),
    Probe("putList with a null value", "IllegalArgumentException", families = true, multiple = true)(
      onStore(_.putList(key("a", 1), Array(value(1), null)))),
    Probe("valuesIterator of a null key", "IllegalStateException", families = true, multiple = true)(
      onStore(_.valuesIterator(null))),
    Probe("deleteRange from a null key", "IllegalStateException", range)(
      onStore(_.deleteRange(null, key(range, "", 1), "default"))),
    Probe("deleteRange to a null key", "IllegalStateException", range)(
      onStore(_.deleteRange(key(range, "", 1), null, "default"))))

  private val Lifecycle: Seq[Probe] = Seq(
    Probe("a version below 0", "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION")(_.getStore(-1, None)),
    Probe("a version below 0 to read", "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION")(_.getReadStore(-1, None)),
    Probe("a version that was never made", NoFile)(_.getStore(3, Some("0123456789abcdef0123456789abcdef"))),
    Probe("a version that was never made, to read", NoFile)(
      _.getReadStore(3, Some("0123456789abcdef0123456789abcdef"))),
    Probe("the greatest version", NoFile)(_.getStore(Long.MaxValue, Some("0123456789abcdef0123456789abcdef"))),
    Probe("the greatest version, to read", NoFile)(
      _.getReadStore(Long.MaxValue, Some("0123456789abcdef0123456789abcdef"))),
    Probe("an id of version 0", NoFile)(_.getStore(0, Some("0123456789abcdef0123456789abcdef"))),
    Probe("another id than that of the version", NoFile) { provider =>
      val one = next(provider, Empty)(_.put(key("a", 1), value(1)))
      provider.getStore(one.number, Some("0123456789abcdef0123456789abcdef"))
    },
    Probe("the error of a missing version says that it does not exist", "true") { provider =>
      val failure = scala.util.Try(provider.getStore(3, Some("0123456789abcdef0123456789abcdef"))).failed.get
      failure.getMessage.contains("does not exist")
    },
    Probe("metrics before a commit are no error", "true")(onStore { store =>
      store.put(key("a", 1), value(1))
      store.metrics.numKeys >= 0
    }),
    Probe("metrics after a commit have the number of keys", "1") { provider =>
      val store = provider.getStore(0, None)
      store.put(key("a", 1), value(1))
      store.commit()
      store.metrics.numKeys
    },
    Probe("put after a commit", OutOfOrder)(onStore { store =>
      store.commit()
      store.put(key("a", 1), value(1))
    }),
    Probe("remove after a commit", OutOfOrder)(onStore { store =>
      store.commit()
      store.remove(key("a", 1))
    }),
    Probe("a second commit", OutOfOrder)(onStore { store =>
      store.commit()
      store.commit()
    }),
    Probe("put after an abort", OutOfOrder)(onStore { store =>
      store.abort()
      store.put(key("a", 1), value(1))
    }),
    Probe("get after an abort", OutOfOrder)(onStore { store =>
      store.abort()
      store.get(key("a", 1))
    }),
    Probe("iterator after an abort", OutOfOrder)(onStore { store =>
      store.abort()
      store.iterator()
    }),
    Probe("a second abort is no error", "false")(onStore { store =>
      store.abort()
      store.abort()
      store.hasCommitted
    }),
    Probe("the checkpoint info before a commit", OutOfOrder)(onStore(_.getStateStoreCheckpointInfo())))

  private val Scans: Seq[Probe] = Seq(
    Probe("a whole scan shows what was there when it was made", "1=1 2=2 3=3 | 1=1 2=20 4=4")(onStore { store =>
      (1 to 3).foreach(i => store.put(key("a", i), value(i)))
      val scan = store.iterator()
      store.put(key("a", 2), value(20))
      store.remove(key("a", 3))
      store.put(key("a", 4), value(4))
      s"${sorted(numbers(noPrefix, scan))} | ${sorted(numbers(noPrefix, store.iterator()))}"
    }),
    Probe("a scan of a prefix shows what was there when it was made", "1=1 2=2 3=3", prefix)(onStore { store =>
      (1 to 3).foreach(i => store.put(key("a", i), value(i)))
      val scan = store.prefixScan(row(nameSchema, "a"))
      store.put(key("a", 2), value(20))
      store.remove(key("a", 3))
      store.put(key("a", 4), value(4))
      numbers(prefix, scan)
    }),
    Probe("a scan of a range shows what was there when it was made", "1=1 2=2 3=3", range, families = true)(onStore {
      store =>
        (1 to 9).foreach(i => store.put(key(range, "a", i), value(i)))
        val scan = store.rangeScan(Some(key(range, "", 1)), Some(key(range, "", 4)))
        store.deleteRange(key(range, "", 3), key(range, "", 9), "default")
        store.put(key(range, "a", 2), value(20))
        store.put(key(range, "b", 2), value(4))
        numbers(range, scan)
    }),
    Probe("a scan of committed rows shows what was there when it was made", "1=1 2=2 3=3", range) { provider =>
      val one = next(provider, Empty)(store => (1 to 3).foreach(i => store.put(key(range, "a", i), value(i))))
      read(provider, one) { store =>
        val scan = store.iterator()
        (1 to 3).foreach(i => store.put(key(range, "a", i), value(10 * i)))
        (2 to 9).foreach(i => store.put(key(range, "b", i), value(i)))
        store.remove(key(range, "a", 3))
        numbers(range, scan)
      }
    },
    Probe("a range that ends before it begins has no rows", "", range)(onStore { store =>
      (1 to 3).foreach(i => store.put(key(range, "a", i), value(i)))
      numbers(range, store.rangeScan(Some(key(range, "", 3)), Some(key(range, "", 1))))
    }),
    Probe("a scan in order of time, negative times first", "-5=1 0=2 7=3", timeFirst)(onStore { store =>
      store.put(key("b", 7), value(3))
      store.put(key("a", -5), value(1))
      store.put(key("c", 0), value(2))
      numbers(timeFirst, store.iterator())
    }),
    Probe("a scan of the times of one key", "-5=1 7=3", timeLast)(onStore { store =>
      store.put(key("b", 7), value(3))
      store.put(key("b", -5), value(1))
      store.put(key("c", 0), value(2))
      numbers(timeLast, store.prefixScan(row(nameSchema, "b")))
    }),
    Probe("prefixScan without prefix columns", "IllegalArgumentException")(
      onStore(_.prefixScan(row(nameSchema, "a")))),
    Probe("rangeScan without order", "IllegalArgumentException")(
      onStore(_.rangeScan(Some(key("a", 1)), Some(key("a", 2))))),
    Probe("rangeScan of a prefix encoder", "IllegalArgumentException", prefix)(
      onStore(_.rangeScan(Some(key("a", 1)), Some(key("a", 2))))),
    Probe("deleteRange without order", "IllegalStateException")(
      onStore(_.deleteRange(key("a", 1), key("a", 2), "default"))),
    Probe("deleteRange of a prefix encoder", "IllegalStateException", prefix)(
      onStore(_.deleteRange(key("a", 1), key("a", 2), "default"))),
    Probe("deleteRange leaves the end out", "1=1 4=4", range, families = true)(onStore { store =>
      (1 to 4).foreach(i => store.put(key(range, "a", i), value(i)))
      store.deleteRange(key(range, "", 2), key(range, "", 4), "default")
      numbers(range, store.iterator())
    }),
    Probe("deleteRange in order of time", "IllegalStateException", timeFirst)(
      onStore(_.deleteRange(key("", 0), key("", 4), "default"))),
    Probe("deleteRange of the times of keys", "IllegalStateException", timeLast)(
      onStore(_.deleteRange(key("a", 0), key("a", 4), "default"))))

  private def sorted(pairs: String): String = pairs.split(" ").sorted.mkString(" ")

  private val Lists: Seq[Probe] = Seq(
    Probe("values of a key in the order of their merges", "1 2 3", families = true, multiple = true)(onStore { store =>
      store.merge(key("a", 1), value(1))
      store.mergeList(key("a", 1), Array(value(2), value(3)))
      store.valuesIterator(key("a", 1)).map(_.getLong(0)).mkString(" ")
    }),
    Probe("a change of a value changes nothing that is stored", "1 2", families = true, multiple = true)(onStore {
      store =>
        store.putList(key("a", 1), Array(value(1), value(2)))
        store.valuesIterator(key("a", 1)).foreach(_.setLong(0, 99))
        store.valuesIterator(key("a", 1)).map(_.getLong(0)).mkString(" ")
    }),
    Probe("values are those of the call", "1 2", families = true, multiple = true)(onStore { store =>
      store.putList(key("a", 1), Array(value(1), value(2)))
      val found = store.valuesIterator(key("a", 1))
      store.merge(key("a", 1), value(3))
      found.map(_.getLong(0)).mkString(" ")
    }),
    Probe("a scan of values shows what was there when it was made", "1=1 1=2", families = true, multiple = true)(
      onStore { store =>
        store.putList(key("a", 1), Array(value(1), value(2)))
        val scan = store.iteratorWithMultiValues()
        store.merge(key("a", 1), value(3))
        numbers(noPrefix, scan)
      }),
    Probe("merge after a removal begins anew", "2", families = true, multiple = true)(onStore { store =>
      store.merge(key("a", 1), value(1))
      store.remove(key("a", 1))
      store.merge(key("a", 1), value(2))
      store.valuesIterator(key("a", 1)).map(_.getLong(0)).mkString(" ")
    }),
    Probe("values of a key that is not there", "", families = true, multiple = true)(
      onStore(_.valuesIterator(key("a", 1)).map(_.getLong(0)).mkString(" "))),
    Probe("merge where a key has one value", "IllegalStateException", families = true)(
      onStore(_.merge(key("a", 1), value(1)))),
    Probe("putList where a key has one value", "IllegalStateException", families = true)(
      onStore(_.putList(key("a", 1), Array(value(1))))),
    Probe("valuesIterator where a key has one value", "IllegalStateException", families = true)(
      onStore(_.valuesIterator(key("a", 1)))),
    Probe("iteratorWithMultiValues where a key has one value", "IllegalStateException", families = true)(
      onStore(_.iteratorWithMultiValues())))

  val All: Seq[Probe] = Values ++ Nulls ++ Lifecycle ++ Scans ++ Lists
}
