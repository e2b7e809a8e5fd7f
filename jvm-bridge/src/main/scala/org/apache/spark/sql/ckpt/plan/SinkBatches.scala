package org.apache.spark.sql.ckpt
package plan

import org.apache.spark.sql.ckpt.minor.{FileStreamSink, HDFSMetadataLog}
import org.apache.spark.sql.connector.catalog.Table

/** What a sink tells of the batches that it has. */
private[ckpt] object SinkBatches {

  /** The newest batch that the sink will skip, from a log of the sink's own; None without such a log, or a batch in it. */
  def newestIn(sink: Table): Option[Long] = sink match {
    case files: FileStreamSink => logOf(files).getLatestBatchId()
    case _ => None
  }

  private def logOf(sink: FileStreamSink): HDFSMetadataLog[_] = {
    val field = classOf[FileStreamSink].getDeclaredField("fileLog")
    field.setAccessible(true)
    field.get(sink).asInstanceOf[HDFSMetadataLog[_ <: AnyRef]]
  }
}
