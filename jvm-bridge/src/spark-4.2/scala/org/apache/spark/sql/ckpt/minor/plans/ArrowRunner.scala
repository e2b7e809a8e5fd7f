package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.JobArtifactSet
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType}
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.ArrowPythonRunner
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/** Spark's runner of a function of `mapInArrow`. */
private[ckpt] class ArrowRunner(
    function: PythonUDF, input: StructType, metrics: Map[String, SQLMetric], conf: SQLConf, isLive: Boolean)
  extends ArrowPythonRunner(
    Seq((ChainedPythonFunctions(Seq(function.func)), function.resultId.id)), PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    Array(Array(0)),
    new StructType().add("struct", input), "UTC", largeVarTypes = false,
    ArrowPythonRunner.getPythonRunnerConfMap(conf), metrics, JobArtifactSet.getCurrentJobArtifactState.map(_.uuid),
    None)
  with PromptRunner {
  require(!isLive, "an operator with state in real-time mode, before Spark 4.3")
}
