package org.apache.spark.sql.ckpt.plan.queries

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.internal.SQLConf

/** Warns, once for each query in this JVM, if somebody has set the session's provider by hand, but not the class that
  * fences Spark's logs.
  */
private[ckpt] object UnfencedLogs extends Logging {
  private val Files = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key
  private val told = ConcurrentHashMap.newKeySet[UUID]()

  /** `confs`: see `KeptState.confsOf`. */
  def warnOf(query: StreamExecution, confs: Map[String, String]): Unit = {
    val files = QuerySession.of(query).sessionState.newHadoopConf().get(Files)
    if (files == null && told.add(query.id)) logWarning(text(query, confs).replaceAll("\\R", " "))
  }

  private def text(query: StreamExecution, confs: Map[String, String]): String = {
    val format =
      if (confs.contains(KeptState.Format)) "" else s" and ${KeptState.Format} (so it has format 1)"
    s"Query ${Option(query.name).getOrElse(query.id)} runs without a fence of Spark's logs: a replaced driver " +
      s"may still write to them. The session lacks $Files$format. pyspark_ckpt.configure(builder) sets all confs."
  }
}
