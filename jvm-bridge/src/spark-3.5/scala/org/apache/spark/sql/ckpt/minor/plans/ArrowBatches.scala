package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.arrow.ArrowConverters
import org.apache.spark.sql.types.StructType

private[ckpt] object ArrowBatches {

  /** The rows of Arrow record batches, serialized without their schema. */
  def rows(batches: Iterator[Array[Byte]], schema: StructType, timeZone: String): Iterator[InternalRow] =
    ArrowConverters.fromBatchIterator(batches, schema, timeZone, errorOnDuplicatedFieldNames = false, TaskContext.get())
}
