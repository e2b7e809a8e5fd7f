package org.apache.spark.sql.ckpt.plan.queries

import scala.util.Try

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.settings.Settings

/** Says once in each run of a query where and how it keeps its state. */
private[ckpt] object StartLog extends Logging {

  /** `confs`: see `KeptState.confsOf`. */
  def tell(query: StreamExecution, confs: Map[String, String]): Unit =
    // An option that is wrong is refused when the query is planned.
    Try(Settings.from(query.sparkSession.sessionState.conf.getAllConfs))
      .foreach(settings => logInfo(text(query, confs, settings).replaceAll("\\R", " ")))

  private def text(query: StreamExecution, confs: Map[String, String], settings: Settings): String = {
    val place = if (settings.remote.isEmpty) s"${query.resolvedCheckpointRoot}/state" else settings.remote
    s"Query ${Option(query.name).fold("")(_ + " ")}(id ${query.id}, run ${query.runId}) keeps its state with " +
      s"pyspark-ckpt $version on Spark ${query.sparkSession.version} in $place: checkpoint format " +
      s"${confs.getOrElse(KeptState.Format, "1")}, ${settings.unusual.text}"
  }

  private def version: String = Option(getClass.getPackage).flatMap(each => Option(each.getImplementationVersion))
    .getOrElse("of a checkout")
}
