package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.{ContextAwareIterator, JobArtifactSet, TaskContext}
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.ArrowPythonRunner
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.ColumnarBatch

/** Spark's runner of a function of `mapInArrow`. It reads rows in a thread of its own, and must stop with the task. */
private[ckpt] class ArrowRunner(
    function: PythonUDF, input: StructType, metrics: Map[String, SQLMetric], conf: SQLConf, isLive: Boolean)
  extends ArrowPythonRunner(
    Seq(ChainedPythonFunctions(Seq(function.func))), PythonEvalType.SQL_MAP_ARROW_ITER_UDF, Array(Array(0)),
    new StructType().add("struct", input), "UTC", largeVarTypes = false,
    ArrowPythonRunner.getPythonRunnerConfMap(conf), metrics, JobArtifactSet.getCurrentJobArtifactState.map(_.uuid))
  with PromptRunner {
  require(!isLive, "an operator with state in real-time mode, before Spark 4.3")

  override def compute(
      batches: Iterator[Iterator[InternalRow]], partition: Int, context: TaskContext): Iterator[ColumnarBatch] =
    super.compute(new ContextAwareIterator(context, batches), partition, context)
}
