package org.apache.spark.sql.ckpt.minor.codec

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.types.StructType

private[ckpt] object ValueEvolution {

  /** Refused: the schema of stored values does not change before Spark 4.0. */
  def reader(from: StructType, to: StructType): UnsafeRow => UnsafeRow =
    throw CkptErrors.unsupported("values of several schemas", "they need Spark 4.0 or newer")
}
