package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.{checkpointing, runtime, sinks}
import org.apache.spark.sql.execution.streaming.operators.stateful
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate

private[minor] trait MovedNames {
  type CancellableFSDataOutputStream = checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
  type CheckpointFileManager = checkpointing.CheckpointFileManager
  type EventTimeWatermarkExec = stateful.EventTimeWatermarkExec
  type FileContextBasedCheckpointFileManager = checkpointing.FileContextBasedCheckpointFileManager
  type FileStreamSink = sinks.FileStreamSink
  type HDFSMetadataLog[T <: AnyRef] = checkpointing.HDFSMetadataLog[T]
  type MicroBatchExecution = runtime.MicroBatchExecution
  type MultipleWatermarkPolicy = runtime.MultipleWatermarkPolicy
  type OffsetSeqLog = checkpointing.OffsetSeqLog
  type SessionWindowStateStoreSaveExec = stateful.SessionWindowStateStoreSaveExec
  type State = runtime.State
  type StateManager = flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper.StateManager
  type StateStoreWriter = stateful.StateStoreWriter
  type StatefulOperatorCustomMetric = stateful.StatefulOperatorCustomMetric
  type StatefulOperatorStateInfo = stateful.StatefulOperatorStateInfo
  type StreamExecution = runtime.StreamExecution
  type StreamingExecutionRelation = runtime.StreamingExecutionRelation
  type StreamingQueryWrapper = runtime.StreamingQueryWrapper
  type WatermarkTracker = runtime.WatermarkTracker

  final val NoTimeout = flatmapgroupswithstate.GroupStateImpl.NO_TIMESTAMP
  val CheckpointFileManager: checkpointing.CheckpointFileManager.type = checkpointing.CheckpointFileManager
  val FlatMapGroupsWithStateExecHelper: flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper.type =
    flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper
  val MultipleWatermarkPolicy: runtime.MultipleWatermarkPolicy.type = runtime.MultipleWatermarkPolicy
  val StatefulOperatorCustomSumMetric: stateful.StatefulOperatorCustomSumMetric.type =
    stateful.StatefulOperatorCustomSumMetric
  val StreamExecution: runtime.StreamExecution.type = runtime.StreamExecution
  val Terminated: State = runtime.TERMINATED
}
