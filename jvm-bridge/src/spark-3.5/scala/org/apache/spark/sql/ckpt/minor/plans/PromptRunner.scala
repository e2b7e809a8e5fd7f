package org.apache.spark.sql.ckpt.minor.plans

import java.net.Socket

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.python.ArrowPythonRunner

/** Sends what it has written at once. Otherwise, TCP keeps a small batch until the worker's system has told the arrival of
  * the last, which takes 40 ms.
  */
private[ckpt] trait PromptRunner extends ArrowPythonRunner {
  override def newWriterThread(
      env: SparkEnv,
      worker: Socket,
      batches: Iterator[Iterator[InternalRow]],
      partition: Int,
      context: TaskContext): WriterThread = {
    worker.setTcpNoDelay(true)
    super.newWriterThread(env, worker, batches, partition, context)
  }
}
