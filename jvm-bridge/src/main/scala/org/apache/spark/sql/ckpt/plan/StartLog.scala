package org.apache.spark.sql.ckpt
package plan

import scala.util.Try

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.minor.{LoggedConfs, StatefulNodes, StreamExecution}
import org.apache.spark.sql.ckpt.server.Settings
import org.apache.spark.sql.internal.SQLConf

/** Says once in each run of a query where and how it keeps its state. */
private[ckpt] object StartLog extends Logging {
  private val Provider = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val Format = "spark.sql.streaming.stateStore.checkpointFormatVersion"

  def tell(query: StreamExecution): Unit = {
    val session = query.sparkSession.sessionState.conf.getAllConfs
    val confs = session ++ LoggedConfs.of(query) // what a checkpoint has recorded stands
    val isOurs = confs.get(Provider).contains(classOf[CkptStateStoreProvider].getName)
    if (isOurs && query.analyzedPlan.exists(node => StatefulNodes.isOne(node) || node.isInstanceOf[KeyedOperator])) {
      // An option that is wrong is refused when the query is planned.
      Try(Settings.from(session)).foreach(settings => logInfo(text(query, confs, settings).replaceAll("\\R", " ")))
    }
  }

  private def text(query: StreamExecution, confs: Map[String, String], settings: Settings): String = {
    val place = if (settings.remote.isEmpty) s"${query.resolvedCheckpointRoot}/state" else settings.remote
    s"Query ${Option(query.name).fold("")(_ + " ")}(id ${query.id}, run ${query.runId}) keeps its state with " +
      s"pyspark-ckpt $version on Spark ${query.sparkSession.version} in $place: checkpoint format " +
      s"${confs.getOrElse(Format, "1")}, ${settings.unusual.text}"
  }

  private def version: String = Option(getClass.getPackage).flatMap(each => Option(each.getImplementationVersion))
    .getOrElse("of a checkout")
}
