package org.apache.spark.sql.ckpt.minor.store

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.StateStore

/** A task that reads a version asks for another store to write the next one. It gets the same store twice, as from
  * Spark's RocksDB provider. Two stores would share no rows in memory: each key would be read from files twice.
  */
private[ckpt] trait ReadStores extends ProviderOperations {
  private val ofTasks = new ConcurrentHashMap[TaskContext, MinorStateStore]

  /** Records a store that only reads, until its task ends. */
  protected def opened(store: MinorStateStore): MinorStateStore = {
    Option(TaskContext.get()).foreach { task =>
      ofTasks.put(task, store)
      task.addTaskCompletionListener[Unit](_ => ofTasks.remove(task))
    }
    store
  }

  /** The store with which the current task reads the version, or a new one; it writes the next version. */
  protected def storeToWrite(version: Long, id: Option[String]): StateStore = {
    val ofTask = Option(TaskContext.get()).flatMap(task => Option(ofTasks.get(task)))
    ofTask.filter(_.canBecomeWritable(version, id)) match {
      case Some(store) => upgradeReadStoreToWriteStore(store, version, id, forceSnapshotOnCommit = false)
      case None => getStore(version, id, forceSnapshotOnCommit = false, loadEmpty = false)
    }
  }
}
