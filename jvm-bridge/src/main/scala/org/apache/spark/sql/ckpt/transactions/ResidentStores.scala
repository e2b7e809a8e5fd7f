package org.apache.spark.sql.ckpt.transactions

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{StateStoreCoordinatorRef, StateStoreProviderId}

/** The open stores of this process that may have their whole state in memory.
  *
  * Spark closes the stores of a run that has ended in its next maintenance, up to a minute later. Others need their
  * memory at once: the next run of the same query, and the next query of a program. Thread-safe.
  */
private[ckpt] final class ResidentStores extends Logging {
  private val stores = ConcurrentHashMap.newKeySet[Transactions]

  def add(store: Transactions): Unit = stores.add(store)
  def remove(store: Transactions): Unit = stores.remove(store)

  /** Frees the memory of stores whose run has ended, because `asking` lacks some; returns whether there were any. */
  def freeEnded(asking: Transactions): Boolean = {
    val others = stores.asScala.filter(_.holdsMemory).groupBy(_.providerId.queryRunId) - asking.providerId.queryRunId
    val ended = others.values.filter(run => hasEnded(run.head.providerId)).flatten
    ended.foreach(_.leaveMemory())
    ended.nonEmpty
  }

  /** Whether Spark's coordinator has forgotten the store: it knows the stores of a run until the run ends. */
  private def hasEnded(id: StateStoreProviderId): Boolean = Option(SparkEnv.get).exists { env =>
    try {
      StateStoreCoordinatorRef.forExecutor(env).getLocation(id).isEmpty
    } catch {
      case NonFatal(failure) =>
        logWarning(s"the driver did not say whether run ${id.queryRunId} has ended", failure)
        false
    }
  }
}
