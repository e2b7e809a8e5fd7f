package org.apache.spark.sql.ckpt.plan.keyed.worker

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarBatch}

/** The rows in a worker's answers, which have two columns: an output row, or null; and, at the end of an answer to what
  * the worker was given, the clocks to store.
  */
private[ckpt] final class WorkerRows(answers: Iterator[ColumnarBatch], atEnd: Array[Byte] => Unit)
  extends Iterator[InternalRow] {
  private var rows: ColumnarBatch = _
  private var output, clocks: ArrowColumnVector = _
  private var at = 0

  override def hasNext: Boolean = {
    while (rows == null || at == rows.numRows || output.isNullAt(at)) {
      if (rows != null && at < rows.numRows) pass()
      else if (answers.hasNext) take(answers.next())
      else return false
    }
    true
  }

  private def take(answer: ColumnarBatch): Unit = {
    val columns = answer.column(0).asInstanceOf[ArrowColumnVector] // of the one struct that Spark's workers answer with
    output = columns.getChild(0)
    clocks = columns.getChild(1)
    rows = new ColumnarBatch(output.dataType.asInstanceOf[StructType].indices.map(output.getChild).toArray)
    rows.setNumRows(answer.numRows)
    at = 0
  }

  /** Goes on to the next row. */
  private def pass(): Unit = {
    if (!clocks.isNullAt(at)) atEnd(clocks.getBinary(at))
    at += 1
  }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException
    val row = rows.getRow(at)
    pass()
    row
  }
}
