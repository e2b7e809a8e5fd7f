package org.apache.spark.sql.ckpt.minor.plans

import java.lang.{Boolean => JBoolean}
import java.net.StandardSocketOptions.TCP_NODELAY

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.api.python.PythonWorker
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.python.ArrowPythonRunner

/** Sends what it has written at once. Otherwise, TCP keeps a small batch until the worker's system has told the arrival of
  * the last, which takes 40 ms.
  */
private[ckpt] trait PromptRunner extends ArrowPythonRunner {
  override def newWriter(
      env: SparkEnv,
      worker: PythonWorker,
      batches: Iterator[Iterator[InternalRow]],
      partition: Int,
      context: TaskContext): Writer = {
    val connection = worker.channel
    if (connection.supportedOptions.contains(TCP_NODELAY)) connection.setOption[JBoolean](TCP_NODELAY, true)
    super.newWriter(env, worker, batches, partition, context)
  }
}
