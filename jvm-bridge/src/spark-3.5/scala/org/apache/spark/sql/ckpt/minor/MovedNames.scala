package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming
import org.apache.spark.sql.execution.streaming.state

private[minor] trait MovedNames {
  type CancellableFSDataOutputStream = streaming.CheckpointFileManager.CancellableFSDataOutputStream
  type CheckpointFileManager = streaming.CheckpointFileManager
  type EventTimeWatermarkExec = streaming.EventTimeWatermarkExec
  type FileContextBasedCheckpointFileManager = streaming.FileContextBasedCheckpointFileManager
  type FileStreamSink = streaming.FileStreamSink
  type HDFSMetadataLog[T <: AnyRef] = streaming.HDFSMetadataLog[T]
  type MicroBatchExecution = streaming.MicroBatchExecution
  type MultipleWatermarkPolicy = streaming.MultipleWatermarkPolicy
  type OffsetSeqLog = streaming.OffsetSeqLog
  type SessionWindowStateStoreSaveExec = streaming.SessionWindowStateStoreSaveExec
  type State = streaming.State
  type StateManager = state.FlatMapGroupsWithStateExecHelper.StateManager
  type StateStoreWriter = streaming.StateStoreWriter
  type StatefulOperatorCustomMetric = streaming.StatefulOperatorCustomMetric
  type StatefulOperatorStateInfo = streaming.StatefulOperatorStateInfo
  type StreamExecution = streaming.StreamExecution
  type StreamingExecutionRelation = streaming.StreamingExecutionRelation
  type StreamingQueryWrapper = streaming.StreamingQueryWrapper
  type WatermarkTracker = streaming.WatermarkTracker

  final val NoTimeout = streaming.GroupStateImpl.NO_TIMESTAMP
  val CheckpointFileManager: streaming.CheckpointFileManager.type = streaming.CheckpointFileManager
  val FlatMapGroupsWithStateExecHelper: state.FlatMapGroupsWithStateExecHelper.type =
    state.FlatMapGroupsWithStateExecHelper
  val MultipleWatermarkPolicy: streaming.MultipleWatermarkPolicy.type = streaming.MultipleWatermarkPolicy
  val StatefulOperatorCustomSumMetric: streaming.StatefulOperatorCustomSumMetric.type =
    streaming.StatefulOperatorCustomSumMetric
  val StreamExecution: streaming.StreamExecution.type = streaming.StreamExecution
  val Terminated: State = streaming.TERMINATED
}
