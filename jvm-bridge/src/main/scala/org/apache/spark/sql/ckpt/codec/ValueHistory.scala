package org.apache.spark.sql.ckpt.codec

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.minor.codec.ValueEvolution
import org.apache.spark.sql.types.StructType

/** The schemas that the values of a column family have had, by Spark's id; the last one is the present one.
  *
  * A row of an earlier schema is read as Avro's rules of schema resolution say, which Spark's check of a changed schema
  * follows, too. Not thread-safe.
  */
private[ckpt] final class ValueHistory(schemas: Seq[StructType]) {
  private val readers = mutable.HashMap.empty[Int, UnsafeRow => UnsafeRow]

  val current: Int = schemas.length - 1

  def columns(id: Int): Int = schemas(id).length

  def isKnown(id: Int): Boolean = schemas.indices.contains(id)

  /** The row in the present schema. */
  def evolve(id: Int, row: UnsafeRow): UnsafeRow =
    if (id == current) row else readers.getOrElseUpdate(id, ValueEvolution.reader(schemas(id), schemas.last))(row)
}
