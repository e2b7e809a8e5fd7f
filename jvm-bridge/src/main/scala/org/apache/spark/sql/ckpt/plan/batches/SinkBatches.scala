package org.apache.spark.sql.ckpt.plan.batches

import java.lang.reflect.InvocationTargetException

import org.apache.spark.sql.ckpt.minor.{FileStreamSink, HDFSMetadataLog}
import org.apache.spark.sql.connector.catalog.Table

/** What a sink reports of its batches. */
private[ckpt] object SinkBatches {
  private final val Delta = "org.apache.spark.sql.delta.sources.DeltaSink"

  /** The newest batch that the sink will skip, from a log of the sink's own; None without such a log, or a batch in it.
    *
    * `query`: its id; None if it has none yet.
    */
  def newestIn(sink: Table, query: => Option[String]): Option[Long] = sink match {
    case files: FileStreamSink => logOf(files).getLatestBatchId()
    case _ if sink.getClass.getName == Delta => query.flatMap(newestInDelta(sink, _))
    case _ => None
  }

  private def logOf(sink: FileStreamSink): HDFSMetadataLog[_] = {
    val field = classOf[FileStreamSink].getDeclaredField("fileLog")
    field.setAccessible(true)
    field.get(sink).asInstanceOf[HDFSMetadataLog[_ <: AnyRef]]
  }

  /** Asks as `DeltaSink.addBatch` does. This jar is built without Delta, so it calls methods by name. */
  private def newestInDelta(sink: Table, query: String): Option[Long] =
    for {
      log <- call(sink, s"${Delta.replace('.', '$')}$$$$deltaLog")
      table <- call(sink, "catalogTable")
      transaction <- call(log, "startTransaction", table, None)
      version <- call(transaction, "txnVersion", query)
      newest = version.asInstanceOf[Long] if newest >= 0
    } yield newest

  /** What a method returns; None if this release of Delta has none of that name, with so many arguments. */
  private def call(on: AnyRef, name: String, arguments: AnyRef*): Option[AnyRef] =
    on.getClass.getMethods.find(each => each.getName == name && each.getParameterCount == arguments.length).map {
      method =>
        try method.invoke(on, arguments: _*)
        catch { case failed: InvocationTargetException => throw failed.getCause }
    }
}
