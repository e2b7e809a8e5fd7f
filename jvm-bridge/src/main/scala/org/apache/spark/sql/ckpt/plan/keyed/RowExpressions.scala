package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.SparkException
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.codegen._
import org.apache.spark.sql.catalyst.expressions.codegen.Block._
import org.apache.spark.sql.types.{BinaryType, DataType, StructType}

/** The bytes of one UnsafeRow with the columns. */
private[ckpt] case class RowBytes(children: Seq[Expression]) extends Expression {
  @transient private lazy val projection = UnsafeProjection.create(children)

  override def dataType: DataType = BinaryType
  override def nullable: Boolean = false
  override def eval(input: InternalRow): Any = RowBytes.copied(projection(input))

  override protected def doGenCode(ctx: CodegenContext, ev: ExprCode): ExprCode = {
    val row = GenerateUnsafeProjection.createCode(ctx, children)
    ev.copy(
      code = code"""
        ${row.code}
        byte[] ${ev.value} = ${classOf[RowBytes].getName}.copied(${row.value});""",
      isNull = FalseLiteral)
  }

  override protected def withNewChildrenInternal(children: IndexedSeq[Expression]): Expression = copy(children)
}

private[ckpt] object RowBytes {

  /** `UnsafeRow.getBytes` may return the buffer that the next row is written to. */
  def copied(row: UnsafeRow): Array[Byte] = {
    val bytes = new Array[Byte](row.getSizeInBytes)
    row.writeToMemory(bytes, org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET)
    bytes
  }
}

/** The rows that a keyed operator outputs, of which Spark's own node knows only that the Python worker answers.
  *
  * `KeyedOperator.Own` takes it away.
  */
private[ckpt] case class OperatorRows(child: Expression, elementSchema: StructType)
  extends UnaryExpression with Generator with CodegenFallback {
  override def eval(input: InternalRow): Iterator[InternalRow] =
    throw SparkException.internalError("Only a keyed operator knows its rows.")

  override protected def withNewChildInternal(newChild: Expression): Expression = copy(newChild)
}
