package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** A copy of Spark's operator of `transformWithState`, with the arguments that its constructor has in this release. */
private[keyed] abstract class CopiedOfScala(op: TransformWithStateExec)
  extends TransformWithStateExec(
    op.keyDeserializer, op.valueDeserializer, op.groupingAttributes, op.dataAttributes, op.statefulProcessor,
    op.timeMode, op.outputMode, op.keyEncoder, op.outputObjAttr, op.stateInfo, op.batchTimestampMs,
    op.prevBatchTimestampMs, op.eventTimeWatermarkForLateEvents, op.eventTimeWatermarkForEviction, op.child,
    op.isStreaming, op.hasInitialState, op.initialStateGroupingAttrs, op.initialStateDataAttrs,
    op.initialStateDeserializer, op.initialState)

/** The same for processors in Python. */
private[keyed] abstract class CopiedOfPython(op: TransformWithStateInPySparkExec)
  extends TransformWithStateInPySparkExec(
    op.functionExpr, op.groupingAttributes, op.output, op.outputMode, op.timeMode, op.stateInfo,
    op.batchTimestampMs, op.prevBatchTimestampMs, op.eventTimeWatermarkForLateEvents,
    op.eventTimeWatermarkForEviction, op.userFacingDataType, op.child, op.isStreaming, op.hasInitialState,
    op.initialState, op.initialStateGroupingAttrs, op.initialStateSchema)
