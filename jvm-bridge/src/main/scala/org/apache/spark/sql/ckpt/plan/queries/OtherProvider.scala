package org.apache.spark.sql.ckpt.plan.queries

import org.apache.spark.internal.Logging
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.StreamExecution
import org.apache.spark.sql.ckpt.minor.plans.StatefulNodes
import org.apache.spark.sql.ckpt.minor.query.LoggedConfs
import org.apache.spark.sql.internal.SQLConf

/** Warns of a query that the session would keep here, and whose checkpoint was written by another provider.
  *
  * Spark takes the provider from the checkpoint, not from the session.
  */
private[ckpt] object OtherProvider extends Logging {
  private val Conf = SQLConf.STATE_STORE_PROVIDER_CLASS.key

  def warnOf(query: StreamExecution): Unit =
    if (CkptStateStoreProvider.isChosen(query.sparkSession.sessionState.conf)) {
      LoggedConfs.of(query).get(Conf).filter(_ != classOf[CkptStateStoreProvider].getName).foreach { other =>
        if (query.analyzedPlan.exists(StatefulNodes.isOne)) logWarning(textFor(query, other).replaceAll("\\R", " "))
      }
    }

  private def textFor(query: StreamExecution, other: String): String = {
    val checkpoint = query.resolvedCheckpointRoot
    s"Query ${Option(query.name).getOrElse(query.id)} keeps its state in $other, although the session has " +
      s"pyspark-ckpt: its checkpoint $checkpoint has this provider. To move it, stop the query, run " +
      s"`pyspark-ckpt checkpoint adopt '$checkpoint' NEW_CHECKPOINT`, and start the query with the new " +
      "checkpointLocation."
  }
}
