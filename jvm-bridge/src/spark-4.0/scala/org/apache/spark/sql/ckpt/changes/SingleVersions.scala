package org.apache.spark.sql.ckpt.changes

import org.apache.spark.sql.ckpt.codec.Families
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.sql.ckpt.store.{CkptStateStore, ProvidedStore}
import org.apache.spark.sql.ckpt.transactions.{Begun, ServedStore}
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore}
import org.apache.spark.util.NextIterator

/** What Spark's reader of state requests in addition to whole versions: the changes of single versions, and a version
  * built from one snapshot and the deltas after it.
  */
private[ckpt] trait SingleVersions extends MinorFineGrainedReplay { provider: ProvidedStore =>

  /** Fails if that snapshot is missing or damaged; no local copy takes its place. */
  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore = {
    val replay = replayCall(snapshotVersion, snapshotVersionStateStoreCkptId, endVersion, endVersionStateStoreCkptId) _
    val txn = transactions.begin(endVersion, (open, _) => replay(open), writes = !readOnly)
    new CkptStateStore(provider, txn, writable = !readOnly)
  }

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): ReadStateStore = replayStateFromSnapshot(
    snapshotVersion, endVersion, readOnly = true, snapshotVersionStateStoreCkptId, endVersionStateStoreCkptId)

  /** Follows the lineage of the valid commit of `endVersion`. The caller closes the reader. */
  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): NextIterator[ChangeReader.Change] = {
    val spec = families.spec("readChangeFeed", colFamilyNameOpt.getOrElse(Families.Default))
    val open = served.handle()
    val request = Json.obj().put("handle", open.handle).put("first", startVersion).put("last", endVersion)
    endVersionStateStoreCkptId.foreach(request.put("id", _))
    val feed = new ChangeFeed(open.server, open.server.call("open_changes", request).get("feed").asLong)
    new ChangeReader(provider, spec, feed, served.runtime.readers.runOptions)
  }

  private def replayCall(start: Long, startId: Option[String], version: Long, id: Option[String])(
      open: ServedStore.Opened): Begun = {
    val request = Json.obj().put("handle", open.handle).put("version", version).put("start", start)
    id.foreach(request.put("id", _))
    startId.foreach(request.put("start_id", _))
    new Begun(open, open.server.call("replay", request, left => served.abort(new Begun(open, left))))
  }
}
