package org.apache.spark.sql.ckpt.transactions

import java.nio.file.{Files, Path}
import java.util.concurrent.atomic.AtomicLong

import org.rocksdb.{Options => RocksOptions, RocksDB => NativeDB, _}

import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.server.LocalFolder
import org.apache.spark.sql.ckpt.settings.MemoryBudget

/** One open view of a store's database: a secondary of the live one, or a local checkpoint opened read-only. */
private[ckpt] final class Reader(val path: String, val live: Boolean, val db: NativeDB, home: Path) {
  val family: ColumnFamilyHandle = db.getDefaultColumnFamily

  /** For look-ups, and for scans whose bounds begin with the same state and hash. */
  val readOptions: ReadOptions = new ReadOptions

  /** For scans of other ranges. */
  val rangeOptions: ReadOptions = new ReadOptions().setTotalOrderSeek(true)

  /** For scans of whole states, which would otherwise evict everything else from the block cache. */
  val scanOptions: ReadOptions = new ReadOptions().setTotalOrderSeek(true).setFillCache(false)

  private var catchUpNanos = 0L

  def catchUp(): Unit = {
    val started = System.nanoTime
    db.tryCatchUpWithPrimary()
    catchUpNanos += System.nanoTime - started
  }

  /** Time of the catch-ups since the last call, including those between two transactions. */
  def takeCatchUpMs(): Long = {
    val taken = catchUpNanos / 1000000
    catchUpNanos = 0
    taken
  }

  /** Whether the view shows exactly the version whose marker row is given (null: the store has no version yet). */
  def shows(markerKey: Array[Byte], markerValue: Array[Byte]): Boolean =
    java.util.Arrays.equals(db.get(family, readOptions, markerKey), markerValue)

  def close(): Unit = {
    readOptions.close()
    rangeOptions.close()
    scanOptions.close()
    db.close()
    if (home != null) LocalFolder.deleteAll(home)
  }
}

/** All readers of this process, which share one block cache and the folder `scratch`. Idle secondaries are kept for the
  * next transaction of their store; the least recently used are closed first.
  */
private[ckpt] final class Readers(scratch: () => Path, budget: MemoryBudget) {
  NativeDB.loadLibrary()
  private val blockCache = new LRUCache(budget.blockCacheBytes)
  private val numbers = new AtomicLong
  private val idle = new IdleViews[Reader](Readers.MaxIdle, _.path, _.close())

  val table: BlockBasedTableConfig = new BlockBasedTableConfig()
    .setBlockCache(blockCache)
    .setFilterPolicy(new BloomFilter(10))
    .setFormatVersion(5)
    .setChecksumType(ChecksumType.kXXH3) // the default of the state server's RocksDB, and not of Spark 3.5's

  private val options = new RocksOptions()
    .setMaxOpenFiles(-1)
    .setTableFormatConfig(table)
    .useFixedLengthPrefixExtractor(KeyCodec.HashedHead)
    .setKeepLogFileNum(1)
    .setInfoLogLevel(InfoLogLevel.ERROR_LEVEL)

  /** Options of the runs that write sets spill. */
  val runOptions: RocksOptions = new RocksOptions()
    .setCompressionType(CompressionType.LZ4_COMPRESSION)
    .setTableFormatConfig(table)

  def blockCacheBytes: Long = blockCache.getUsage

  /** Takes a view of `path`; a live one has not caught up yet. The caller gives it back or closes it. */
  def take(path: String, live: Boolean): Reader =
    (if (live) idle.take(path) else None).getOrElse(open(path, live))

  /** Takes a view back. `keep`, which must not block: its path is still the live one of an open store. */
  def giveBack(reader: Reader, keep: Reader => Boolean): Unit =
    if (reader.live) idle.giveBack(reader, keep) else reader.close()

  def haveIdle(path: String): Boolean = idle.have(path)

  /** Lets the idle view of a live database catch up with its owner; closes the view if that fails. */
  def catchUpIdle(path: String, keep: Reader => Boolean): Unit = idle.take(path).foreach { reader =>
    try {
      reader.catchUp()
      giveBack(reader, keep)
    } catch {
      case _: RocksDBException => reader.close()
    }
  }

  /** Closes the idle views of a path that is no longer used. */
  def forget(path: String): Unit = idle.forget(path)

  /** Closes the idle views, and from now on all that are given back. */
  def close(): Unit = idle.close()

  private def open(path: String, live: Boolean): Reader =
    if (live) {
      val home = scratch().resolve(s"secondary-${numbers.incrementAndGet()}")
      Files.createDirectories(home)
      try {
        new Reader(path, live, NativeDB.openAsSecondary(options, path, home.toString), home)
      } catch {
        case failure: RocksDBException =>
          LocalFolder.deleteAll(home)
          throw failure
      }
    } else {
      new Reader(path, live, NativeDB.openReadOnly(options, path), null)
    }
}

private[ckpt] object Readers {
  private val MaxIdle = 1024
}
