package org.apache.spark.sql.ckpt.store

import org.apache.spark.sql.ckpt.Stores
import org.apache.spark.sql.execution.streaming.state._

/** Questions about column families. */
private[store] object FamilyProbes {
  import Probes._
  import Stores._

  private def create(store: StateStore, name: String, multiple: Boolean = false, internal: Boolean = false): Unit =
    store.createColFamilyIfAbsent(name, keySchema, valueSchema, noPrefix, multiple, internal)

  private def names(store: StateStore): String = (store.allColumnFamilyNames - "default").toSeq.sorted.mkString(" ")

  val All: Seq[Probe] = Seq(
    Probe("a family of an empty name", BadName, families = true)(onStore(create(_, ""))),
    Probe("a family of a name that begins with a space", BadName, families = true)(onStore(create(_, " a"))),
    Probe("a family of a name that ends with a space", BadName, families = true)(onStore(create(_, "a "))),
    Probe("a family of the name default", BadName, families = true)(onStore(create(_, "default"))),
    Probe("a user's family of a reserved name", "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS",
      families = true)(onStore(create(_, "$a"))),
    Probe("a user's family of a name that begins with _", "_a", families = true)(onStore { store =>
      create(store, "_a")
      names(store)
    }),
    Probe("an internal family of a reserved name", "$a", families = true)(onStore { store =>
      create(store, "$a", internal = true)
      names(store)
    }),
    Probe("a family where there are none", "STATE_STORE_UNSUPPORTED_OPERATION")(onStore(create(_, "a"))),
    Probe("get of a family where there are none", "STATE_STORE_UNSUPPORTED_OPERATION")(
      onStore(_.get(key("a", 1), "a"))),
    Probe("removal of a family where there are none", "STATE_STORE_UNSUPPORTED_OPERATION")(
      onStore(_.removeColFamilyIfExists("a"))),
    Probe("get of a family of a bad name", BadName, families = true)(onStore(_.get(key("a", 1), " a"))),
    Probe("get of a missing family", Missing, families = true)(onStore(_.get(key("a", 1), "a"))),
    Probe("put into a missing family", Missing, families = true)(onStore(_.put(key("a", 1), value(1), "a"))),
    Probe("scan of a missing family", Missing, families = true)(onStore(_.iterator("a"))),
    Probe("removal of a missing family", "false", families = true)(onStore(_.removeColFamilyIfExists("a"))),
    Probe("removal of the family default", BadName, families = true)(onStore(_.removeColFamilyIfExists("default"))),
    Probe("families are apart", "1 2", families = true)(onStore { store =>
      create(store, "a")
      create(store, "b")
      store.put(key("k", 1), value(1), "a")
      store.put(key("k", 1), value(2), "b")
      s"${store.get(key("k", 1), "a").getLong(0)} ${store.get(key("k", 1), "b").getLong(0)}"
    }),
    Probe("a family that was created and never written is there in the next version", "a null", families = true) {
      provider =>
        val one = next(provider, Empty)(create(_, "a"))
        read(provider, one)(store => s"${names(store)} ${store.get(key("k", 1), "a")}")
    },
    Probe("create, drop, create, drop leaves no name", " a   ", families = true) { provider =>
      val one = next(provider, Empty)(create(_, "a"))
      read(provider, one) { store =>
        val seen = new StringBuilder
        (1 to 2).foreach { _ =>
          store.removeColFamilyIfExists("a")
          seen ++= names(store) + " "
          if (seen.length < 3) {
            create(store, "a")
            seen ++= names(store) + " "
          }
        }
        seen.toString + " "
      }
    },
    Probe("create and drop in one transaction leaves no name", "true  | ", families = true) { provider =>
      var seen = ""
      val one = next(provider, Empty) { store =>
        create(store, "a")
        store.put(key("k", 1), value(1), "a")
        seen = s"${store.removeColFamilyIfExists("a")} ${names(store)}"
      }
      s"$seen | ${read(provider, one)(names)}"
    },
    Probe("a family that was dropped and created again has no rows", "null 2", families = true) { provider =>
      val one = next(provider, Empty) { store =>
        create(store, "a")
        store.put(key("k", 1), value(1), "a")
      }
      val two = next(provider, one) { store =>
        store.removeColFamilyIfExists("a")
        create(store, "a")
        store.put(key("k", 2), value(2), "a")
      }
      read(provider, two)(store => s"${store.get(key("k", 1), "a")} ${store.get(key("k", 2), "a").getLong(0)}")
    },
    Probe("a family that an aborted transaction has created is gone", " " + Missing, families = true) { provider =>
      val one = next(provider, Empty)(_.put(key("k", 1), value(1)))
      val lost = provider.getStore(one.number, one.id)
      create(lost, "a")
      lost.put(key("k", 1), value(1), "a")
      lost.abort()
      read(provider, one) { store =>
        val found =
          try String.valueOf(store.get(key("k", 1), "a"))
          catch { case failure: StateStoreUnsupportedOperationOnMissingColumnFamily => failure.getCondition }
        s"${names(store)} $found"
      }
    },
    Probe("a family that an aborted transaction has dropped is there", "a 1", families = true) { provider =>
      val one = next(provider, Empty) { store =>
        create(store, "a")
        store.put(key("k", 1), value(1), "a")
      }
      val lost = provider.getStore(one.number, one.id)
      lost.removeColFamilyIfExists("a")
      lost.abort()
      read(provider, one)(store => s"${names(store)} ${store.get(key("k", 1), "a").getLong(0)}")
    },
    Probe("get of a family that was dropped", Missing, families = true)(onStore { store =>
      create(store, "a")
      store.put(key("k", 1), value(1), "a")
      store.removeColFamilyIfExists("a")
      store.get(key("k", 1), "a")
    }),
    Probe("merge into a family of one value a key", "IllegalStateException", families = true)(onStore { store =>
      create(store, "a")
      store.merge(key("k", 1), value(1), "a")
    }))
}
