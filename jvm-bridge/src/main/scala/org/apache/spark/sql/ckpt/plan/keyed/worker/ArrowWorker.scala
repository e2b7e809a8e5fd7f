package org.apache.spark.sql.ckpt.plan.keyed.worker

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{PythonUDF, UnsafeRow}
import org.apache.spark.sql.ckpt.minor.plans.ArrowRunner
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._

/** Gives rows to a Python worker as Arrow batches, and takes the rows of the batches that it answers with: what Spark's
  * `mapInArrow` does.
  */
private[ckpt] final class ArrowWorker(function: PythonUDF, input: StructType, metrics: Map[String, SQLMetric]) {

  /** The output rows. `atEnd` is given the clocks to store, empty for none. */
  def run(rows: Iterator[InternalRow], context: TaskContext, atEnd: Array[Byte] => Unit): Iterator[InternalRow] =
    new WorkerRows(answers(new ArrowWorker.Batches(rows), context, isLive = false), atEnd)

  /** Each of the `groups` is sent at once, and answered before the next. */
  def runLive(groups: ArrivingRows, context: TaskContext, atEnd: Array[Byte] => Unit): Iterator[InternalRow] =
    new WorkerRows(
      answers(groups.map(_.map(InternalRow(_))), context, isLive = true),
      clocks => {
        groups.answered()
        atEnd(clocks)
      })

  private def answers(batches: Iterator[Iterator[InternalRow]], context: TaskContext, isLive: Boolean) =
    new ArrowRunner(function, ArrowWorker.handed(input).asInstanceOf[StructType], metrics, SQLConf.get, isLive)
      .compute(batches, context.partitionId(), context)
}

private[ckpt] object ArrowWorker {

  /** A worker holds several batches at once. */
  final val MostBytes = 4 << 20
  final val MostRows = 65536

  /** The type in which Python gets values: intervals of months as their number, for which pyarrow has no type. Names that
    * a struct has twice, which Spark refuses to pass, are those of their places: Python knows the fields by these.
    */
  private def handed(kind: DataType): DataType = kind match {
    case _: YearMonthIntervalType => IntegerType
    case StructType(fields) =>
      val isTwice = fields.map(_.name).distinct.length < fields.length
      StructType(fields.zipWithIndex.map { case (field, place) =>
        field.copy(name = if (isTwice) place.toString else field.name, dataType = handed(field.dataType))
      })
    case ArrayType(element, hasNull) => ArrayType(handed(element), hasNull)
    case MapType(key, value, hasNull) => MapType(handed(key), handed(value), hasNull)
    case user: UserDefinedType[_] => handed(user.sqlType)
    case other => other
  }

  /** What a row counts of `MostBytes`. */
  def sizeOf(row: InternalRow): Int = row match {
    case unsafe: UnsafeRow => unsafe.getSizeInBytes
    case _ => 0
  }

  /** Rows in batches of limited size, each row as the only column of another: so Python gets a batch of its columns. */
  private final class Batches(rows: Iterator[InternalRow]) extends Iterator[Iterator[InternalRow]] {
    override def hasNext: Boolean = rows.hasNext

    override def next(): Iterator[InternalRow] = new Iterator[InternalRow] {
      private var count = 0
      private var bytes = 0L

      override def hasNext: Boolean = count < MostRows && bytes < MostBytes && rows.hasNext

      override def next(): InternalRow = {
        val row = rows.next()
        count += 1
        bytes += sizeOf(row)
        InternalRow(row)
      }
    }
  }
}
