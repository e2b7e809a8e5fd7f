package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.ckpt.server.OptionTable
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.util.CompletionIterator

/** Tells the Python worker, which starts after this, the options of the query. A foreachBatch function may read its frame
  * in a thread without confs, or in a session with others.
  */
private[ckpt] trait ToldOptions extends FlatMapGroupsInPandasWithStateExec {
  override def processDataWithPartition(
      childDataIterator: Iterator[InternalRow],
      store: StateStore,
      processor: InputProcessor,
      initialStateIterOption: Option[Iterator[InternalRow]]): CompletionIterator[InternalRow, Iterator[InternalRow]] = {
    store match {
      case own: CkptStateStore => tell(own.creator.served.settings.options)
      case _ =>
    }
    super.processDataWithPartition(childDataIterator, store, processor, initialStateIterOption)
  }

  private def tell(options: Map[String, String]): Unit = {
    val properties = TaskContext.get().getLocalProperties
    OptionTable.keys.foreach { key =>
      options.get(key) match {
        case Some(value) => properties.setProperty(OptionTable.Prefix + key, value)
        case None => properties.remove(OptionTable.Prefix + key)
      }
    }
  }
}
