package org.apache.spark.sql.ckpt.plan.batches

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException, CkptStateStoreProvider}
import org.apache.spark.sql.ckpt.fence.CurrentCheckpoint
import org.apache.spark.sql.ckpt.minor.ClassicSession
import org.apache.spark.sql.ckpt.settings.Settings

/** Refuses to start a query whose sink has batches that the checkpoint does not know.
  *
  * The sink takes each number once. It would skip the next batches, although their rows differ from those that it has
  * under these numbers, and the rows would be lost.
  */
private[ckpt] object SinkAhead {
  private val Key = "sinkAhead"

  /** Throws IllegalArgumentException, which PySpark has a class for. */
  def requirePlanned(session: ClassicSession, query: WriteToStream): Unit = {
    val conf = session.sessionState.conf
    if (CkptStateStoreProvider.isChosen(conf) && !isAllowed(conf.getAllConfs)) {
      val checkpoint = new Path(query.resolvedCheckpointLocation)
      lazy val hadoopConf = session.sessionState.newHadoopConf()
      // Before the plans, as the query writes them.
      val newest = SinkBatches.newestIn(query.sink, CurrentCheckpoint.idOf(checkpoint, hadoopConf))
      newest.foreach { newest =>
        val planned = PlannedBatches.last(checkpoint, hadoopConf)
        if (newest > planned) {
          val knows = if (planned < 0) "knows none" else s"knows only those up to $planned"
          val what =
            s"The query is not started on $checkpoint: its sink ${query.sink} has batches up to $newest, but " +
              s"this checkpoint $knows"
          val refused = refusal(what, planned + 1, newest)
          throw new IllegalArgumentException(refused.getMessage, refused)
        }
      }
    }
  }

  /** Whether the option says that the sink has the same rows. */
  def isAllowed(confs: Map[String, String]): Boolean =
    confs.get(Settings.Prefix + Key).exists(_.trim.equalsIgnoreCase("skip"))

  def refusal(what: String, first: Long, last: Long): CkptException = {
    val numbers = if (first == last) s"batch $first" else s"batches $first to $last"
    CkptErrors.invalidInput(
      s"$what. The sink would skip the new rows of $numbers, which would be lost.",
      "If the query has gone back to a savepoint, restore it once more, and list in replay_from all checkpoints on " +
        "which it ran after the savepoint, also those to which it was moved (restore, rescale): these batches then " +
        "get the same rows as before. Or give the query another sink, or delete the rows of these batches from the " +
        s"sink. If they get the same rows in any case, set the option ${Settings.Prefix}$Key to skip.")
  }
}
