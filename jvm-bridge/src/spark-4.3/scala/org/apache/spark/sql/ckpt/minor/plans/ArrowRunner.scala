package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.{JobArtifactSet, TaskContext}
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.ArrowPythonRunner
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.ColumnarBatch

/** Spark's runner of a function of `mapInArrow`. */
private[ckpt] object ArrowRunner {
  def run(
      function: PythonUDF,
      input: StructType,
      metrics: Map[String, SQLMetric],
      batches: Iterator[Iterator[InternalRow]],
      context: TaskContext,
      isLive: Boolean): Iterator[ColumnarBatch] = {
    val conf = SQLConf.get
    val bufferSize = if (isLive) LiveBytes else conf.pandasUDFBufferSize
    new Runner(bufferSize, isLive, function, input, conf, metrics).compute(batches, context.partitionId(), context)
  }

  /** No byte waits for others in the buffer of a live worker. Its answers are read while rows are written. */
  private final val LiveBytes = 256

  /** The first two are set before Spark's constructor uses them. */
  private final class Runner(
      override val bufferSize: Int,
      override val pipelinedEnabled: Boolean,
      function: PythonUDF,
      input: StructType,
      conf: SQLConf,
      metrics: Map[String, SQLMetric])
    extends ArrowPythonRunner(
      Seq((ChainedPythonFunctions(Seq(function.func)), function.resultId.id)), PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
      Array(Array(0)), new StructType().add("struct", input), "UTC", largeVarTypes = false,
      ArrowPythonRunner.getPythonRunnerConfMap(conf), metrics, JobArtifactSet.getCurrentJobArtifactState.map(_.uuid),
      None)
}
