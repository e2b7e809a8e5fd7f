package org.apache.spark.sql.ckpt.store

import java.nio.file.{Files, Path}

import scala.util.control.NonFatal

import org.scalatest.{BeforeAndAfterAll, BeforeAndAfterEach}
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkThrowable
import org.apache.spark.sql.ckpt.Stores
import org.apache.spark.sql.ckpt.transactions.SharedRuntime

/** What Spark's operators rely on, and which errors they get: the same assertions on our store and on Spark's two. Where
  * a store answers otherwise, `exceptions` says how.
  */
class ContractSuite extends AnyFunSuite with BeforeAndAfterEach with BeforeAndAfterAll {
  import ContractSuite._
  import Stores._

  private var folder: Path = _

  override def beforeEach(): Unit = folder = Files.createTempDirectory("contract")
  override def afterEach(): Unit = Stores.deleteAll(folder)
  override def afterAll(): Unit = SharedRuntime.stop()

  /** What a call answers, or its error: the condition, else the class. */
  private def outcome(call: => Any): String =
    try String.valueOf(call)
    catch {
      case failure: Throwable if NonFatal(failure) || failure.isInstanceOf[AssertionError] =>
        val condition = failure match {
          case known: SparkThrowable => Option(known.getCondition)
          case _ => None
        }
        condition.getOrElse(failure.getClass.getSimpleName)
    }

  for (kind <- Kinds; probe <- All if kind != Hdfs || probe.isForHdfs) {
    test(s"${kind.name}: ${probe.name}") {
      val provider = start(kind, folder, probe.encoder, probe.families, probe.multiple)
      try {
        val expected = Exceptions.getOrElse((kind, probe.name), probe.expected)
        assert(outcome(probe.run(provider)) == expected)
      } finally {
        provider.close()
      }
    }
  }
}

object ContractSuite {
  import Probes._
  import Stores._

  private val Kinds = Seq(Ours, OursInMemory, RocksDB, Hdfs)
  private val All: Seq[Probe] = RowProbes.All ++ FamilyProbes.All

  private val BadStamp = "STATE_STORE_INVALID_STAMP"
  private val NoIds = "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED"

  /** Where a store of Spark's answers otherwise. Ours has no exception. */
  private val Exceptions: Map[(Kind, String), String] = Map(
    // Its view of the database is given up with the transaction, whatever is asked next.
    (RocksDB, "put after a commit") -> BadStamp,
    (RocksDB, "remove after a commit") -> BadStamp,
    (RocksDB, "put after an abort") -> BadStamp,
    (RocksDB, "an id of version 0") -> "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED", // it fails an assertion
    (RocksDB, "get after an abort") -> BadStamp,
    (RocksDB, "iterator after an abort") -> BadStamp,
    (RocksDB, "metrics before a commit are no error") -> OutOfOrder,
    // A load that fails leaves it locked; it does forget how the rows of a family are encoded that is dropped.
    (RocksDB, "a family that an aborted transaction has dropped is there") -> "NullPointerException",
    // A map of the JVM, with the checks that Spark had before it had conditions.
    (Hdfs, "multiGet answers what was there when it was called") -> "2",
    (Hdfs, "a change of a row that was read changes nothing that is stored") -> "99 99 99",
    (Hdfs, "a change of the rows of a scan changes nothing that is stored") -> "NullPointerException",
    (Hdfs, "a change of the rows of a whole scan changes nothing that is stored") -> "50=99 50=99 2",
    (Hdfs, "put of a null key") -> "NullPointerException",
    (Hdfs, "get of a null key") -> "NullPointerException",
    (Hdfs, "keyExists of a null key") -> "NullPointerException",
    (Hdfs, "remove of a null key") -> "NullPointerException",
    (Hdfs, "a version that was never made") -> NoIds,
    (Hdfs, "a version that was never made, to read") -> "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS",
    (Hdfs, "the greatest version") -> NoIds,
    (Hdfs, "the greatest version, to read") -> "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
    (Hdfs, "an id of version 0") -> NoIds,
    (Hdfs, "another id than that of the version") -> NoIds,
    (Hdfs, "the error of a missing version says that it does not exist") -> "false",
    (Hdfs, "put after a commit") -> "IllegalStateException",
    (Hdfs, "remove after a commit") -> "IllegalStateException",
    (Hdfs, "a second commit") -> "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT",
    (Hdfs, "put after an abort") -> "IllegalStateException",
    (Hdfs, "get after an abort") -> "null",
    (Hdfs, "iterator after an abort") -> "<iterator>",
    (Hdfs, "the checkpoint info before a commit") -> "StateStoreCheckpointInfo(0,1,None,None)",
    (Hdfs, "a whole scan shows what was there when it was made") -> "1=1 2=20 4=4 | 1=1 2=20 4=4",
    (Hdfs, "a scan of a prefix shows what was there when it was made") -> "1=1 2=20 4=4",
    (Hdfs, "a family where there are none") -> "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES",
    (Hdfs, "get of a family where there are none") -> "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES",
    (Hdfs, "removal of a family where there are none") -> "UNSUPPORTED_FEATURE.STATE_STORE_REMOVING_COLUMN_FAMILIES",
    (Hdfs, "prefixScan without prefix columns") -> "UNSUPPORTED_CALL.WITHOUT_SUGGESTION",
    (Hdfs, "rangeScan without order") -> "STATE_STORE_UNSUPPORTED_OPERATION",
    (Hdfs, "rangeScan of a prefix encoder") -> "STATE_STORE_UNSUPPORTED_OPERATION",
    (Hdfs, "deleteRange without order") -> "UnsupportedOperationException",
    (Hdfs, "deleteRange of a prefix encoder") -> "UnsupportedOperationException")
}
