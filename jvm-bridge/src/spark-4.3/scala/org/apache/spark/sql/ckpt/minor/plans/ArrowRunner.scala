package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.JobArtifactSet
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType}
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.ArrowPythonRunner
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** Spark's runner of a function of `mapInArrow`. The last two are set before Spark's constructor uses them: no byte
  * waits for others in the buffer of a live worker, and its answers are read while rows are written.
  */
private[ckpt] class ArrowRunner(
    function: PythonUDF,
    input: StructType,
    metrics: Map[String, SQLMetric],
    conf: SQLConf,
    override val pipelinedEnabled: Boolean,
    override val bufferSize: Int)
  extends ArrowPythonRunner(
    Seq((ChainedPythonFunctions(Seq(function.func)), function.resultId.id)), PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    Array(Array(0)),
    new StructType().add("struct", input), "UTC", largeVarTypes = false,
    ArrowPythonRunner.getPythonRunnerConfMap(conf), metrics, JobArtifactSet.getCurrentJobArtifactState.map(_.uuid),
    None)
  with PromptRunner {

  def this(function: PythonUDF, input: StructType, metrics: Map[String, SQLMetric], conf: SQLConf, isLive: Boolean) =
    this(function, input, metrics, conf, isLive, if (isLive) ArrowRunner.LiveBytes else conf.pandasUDFBufferSize)
}

private object ArrowRunner {
  final val LiveBytes = 256
}
