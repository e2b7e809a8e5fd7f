package org.apache.spark.sql.ckpt.plan.queries

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.FencedCheckpointFileManager
import org.apache.spark.sql.ckpt.minor.{ClassicSession, StreamExecution}
import org.apache.spark.sql.ckpt.minor.query.QuerySession
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.internal.SQLConf

/** Warns, once for each query in this JVM, if somebody has set the session's provider by hand, but not the class that
  * fences Spark's logs.
  */
private[ckpt] object UnfencedLogs extends Logging {
  private val Files = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key
  private val Durability = s"${Settings.Prefix}durability"
  private val told = ConcurrentHashMap.newKeySet[UUID]()

  /** `confs`: see `KeptState.confsOf`. */
  def warnOf(query: StreamExecution, confs: Map[String, String]): Unit = {
    val files = QuerySession.of(query).sessionState.newHadoopConf().get(Files)
    if (files == null && told.add(query.id)) logWarning(text(query, confs).replaceAll("\\R", " "))
  }

  /** Throws IllegalArgumentException if batches are to be durable as a whole, and no log of ours waits for them. */
  def refuse(session: ClassicSession): Unit = {
    val confs = session.sessionState.newHadoopConf()
    val isOurs = confs.get(Files) == classOf[FencedCheckpointFileManager].getName
    if ("batch".equalsIgnoreCase(confs.get(Durability)) && !isOurs) {
      throw new IllegalArgumentException(
        s"$Durability is batch, so the commit log must wait until state is durable, but $Files is ${confs.get(Files)}. " +
          "pyspark_ckpt.configure(builder) sets it; or set durability to task.")
    }
  }

  private def text(query: StreamExecution, confs: Map[String, String]): String = {
    val format =
      if (confs.contains(KeptState.Format)) "" else s" and ${KeptState.Format} (so it has format 1)"
    s"Query ${Option(query.name).getOrElse(query.id)} runs without a fence of Spark's logs: a replaced driver " +
      s"may still write to them. The session lacks $Files$format. pyspark_ckpt.configure(builder) sets all confs."
  }
}
