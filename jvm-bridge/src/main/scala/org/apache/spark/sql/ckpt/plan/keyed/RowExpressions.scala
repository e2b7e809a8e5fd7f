package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.codegen._
import org.apache.spark.sql.catalyst.expressions.codegen.Block._
import org.apache.spark.sql.ckpt.minor.plans.ArrowBatches
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

/** One row for each row of an Arrow record batch, which is serialized without its schema; none for null. */
private[ckpt] case class ArrowRows(child: Expression, elementSchema: StructType)
  extends UnaryExpression with Generator with CodegenFallback {

  override def eval(input: InternalRow): Iterator[InternalRow] = {
    val batch = child.eval(input).asInstanceOf[Array[Byte]]
    if (batch == null) { // a null, which pushes the batches before it out of the worker
      Iterator.empty
    } else {
      ArrowBatches.rows(new ArrowRows.Once(batch), elementSchema, ArrowRows.TimeZone)
    }
  }

  override protected def withNewChildInternal(child: Expression): Expression = copy(child)
}

private[ckpt] object ArrowRows {

  /** Used only for the Arrow schema: instants are the same in every zone. */
  private final val TimeZone = "UTC"

  /** Releases the batch after its use, because Spark holds its iterator of rows until the task ends. */
  private final class Once(private var batch: Array[Byte]) extends Iterator[Array[Byte]] {
    override def hasNext: Boolean = batch != null

    override def next(): Array[Byte] = {
      val taken = batch
      batch = null
      taken
    }
  }
}
