package org.apache.spark.sql.ckpt.minor.store

import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.sql.ckpt.minor.query.RunId
import org.apache.spark.sql.execution.streaming.state._

/** Tells Spark's coordinator on the driver what a store has done, if its conf asks for that. */
private[ckpt] object DriverReports {

  /** A store of which the coordinator hears no snapshot counts as lagging. */
  def snapshot(id: StateStoreId, version: Long, conf: StateStoreConf, hadoopConf: Configuration): Unit =
    if (conf.reportSnapshotUploadLag) {
      val ofRun = StateStoreProviderId(id, UUID.fromString(RunId.of(hadoopConf).get))
      Option(SparkEnv.get).foreach { env =>
        StateStoreCoordinatorRef.forExecutor(env).snapshotUploaded(ofRun, version, System.currentTimeMillis())
      }
    }

  def commit(id: StateStoreId, version: Long, conf: StateStoreConf, hadoopConf: Configuration): Unit =
    if (conf.commitValidationEnabled) StateStore.reportCommitToCoordinator(version, id, hadoopConf)
}
