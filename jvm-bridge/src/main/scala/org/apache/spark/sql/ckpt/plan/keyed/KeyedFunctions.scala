package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.FunctionIdentifier
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.settings.Metrics
import org.apache.spark.sql.types.{DataType, LongType, StringType, StructType}

/** The SQL functions that the Python side puts around Spark's applyInPandasWithState, so that no value passes through
  * pandas. They are all that it needs of the JVM, so a program may also run in a Spark Connect client.
  */
private[ckpt] object KeyedFunctions {
  private type Builder = Seq[Expression] => Expression

  def addTo(extensions: SparkSessionExtensions): Unit =
    Seq[(String, Builder)]("ckpt_row" -> rowBytes, "ckpt_micros" -> micros, "ckpt_rows" -> rows).foreach {
      case (name, builder) =>
        extensions.injectFunction((FunctionIdentifier(name), new ExpressionInfo("pyspark-ckpt", name), builder))
    }

  /** `ckpt_row(*)`: all columns of a row as one binary value. */
  private def rowBytes: Builder = RowBytes(_)

  /** `ckpt_micros(at)`: an event time, or the end of a window, in microseconds. It shows which rows are late.
    *
    * As in Spark, a row without an event time is not late.
    */
  private def micros: Builder = {
    case Seq(column) =>
      val instant = if (column.dataType.isInstanceOf[StructType]) GetStructField(column, WindowEnd) else column
      Coalesce(Seq(PreciseTimestampConversion(instant, instant.dataType, LongType), NeverLate))
    case others => throw refusal("ckpt_micros", 1, others)
  }

  /** `ckpt_rows(answers, schema, counters)`: the rows that an operator outputs.
    *
    * It also declares the counters of the operator, an array of names: Spark fixes metrics when it plans a query.
    */
  private def rows: Builder = {
    case Seq(answers, schema, counters) =>
      counters.eval().asInstanceOf[ArrayData].foreach(StringType, (_, name) => Metrics.declareCounter(name.toString))
      OperatorRows(answers, DataType.fromJson(schema.eval().toString).asInstanceOf[StructType])
    case others => throw refusal("ckpt_rows", 3, others)
  }

  private def refusal(function: String, arguments: Int, children: Seq[Expression]): CkptException =
    CkptErrors.invalidInput(
      s"$function takes $arguments arguments, got ${children.length}.", "It is called by pyspark_ckpt.keyed alone.")

  private final val WindowEnd = 1
  private val NeverLate = Literal(Long.MaxValue)
}
