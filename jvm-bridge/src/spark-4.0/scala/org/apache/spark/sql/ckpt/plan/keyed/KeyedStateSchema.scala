package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.ckpt.minor.{CheckpointFileManager, FlatMapGroupsInPandasWithStateExec}
import org.apache.spark.sql.ckpt.minor.FlatMapGroupsWithStateExecHelper.createStateManager
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Compares the form of a keyed operator's group row with the checkpoint's record, before a batch is run.
  *
  * Under earlier releases, an operator that began without timers is on record without the column for a time-out. It has
  * no rows, as only timers make some. So its record is compared with its own form, and stays.
  */
private[ckpt] trait KeyedStateSchema extends FlatMapGroupsInPandasWithStateExec {
  override def validateAndMaybeEvolveStateSchema(
      hadoopConf: Configuration, batchId: Long, stateSchemaVersion: Int): List[StateSchemaValidationResult] = {
    val untimed = createStateManager(stateEncoder, shouldStoreTimestamp = false, stateFormatVersion).stateSchema
    val value = if (recordedValues(hadoopConf).contains(untimed)) untimed else stateManager.stateSchema
    val schema = StateStoreColFamilySchema(
      StateStore.DEFAULT_COL_FAMILY_NAME, 0, groupingAttributes.toStructType, 0, value)
    List(StateSchemaCompatibilityChecker.validateAndMaybeEvolveStateSchema(
        getStateInfo, hadoopConf, List(schema), session.sessionState, stateSchemaVersion))
  }

  /** The form of the group's row in the checkpoint's record; None before the first batch. */
  private def recordedValues(hadoopConf: Configuration): Option[StructType] = {
    val info = getStateInfo
    val id = StateStoreId(info.checkpointLocation, info.operatorId, 0)
    val record = new Path(id.storeCheckpointLocation(), "_metadata/schema")
    Option.when(CheckpointFileManager.create(record, hadoopConf).exists(record)) {
      val checker = new StateSchemaCompatibilityChecker(StateStoreProviderId(id, info.queryRunId), hadoopConf)
      checker.readSchemaFile().head.valueSchema
    }
  }
}
