package org.apache.spark.sql.ckpt
package codec

import org.apache.spark.sql.catalyst.expressions.{
  BoundReference,
  CollationAwareMurmur3Hash,
  UnsafeProjection,
  UnsafeRow
}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Which columns of a state key Spark partitioned the operator's input by, and their hash.
  *
  * The hash is the one `HashPartitioning` uses (Murmur3, seed 42, aware of collations), so that the partition of a row
  * is `pmod(hash, n)` for any n. What Spark's StatePartitionKeyExtractorFactory knows by operator name follows here from
  * the store's or column family's name and from the key encoder.
  */
private[ckpt] object PartitionKey {

  /** The hash of a key with no columns: that of an operator whose rows are all in partition 0. */
  private val NoColumns = 42

  def columns(name: String, spec: KeyStateEncoderSpec): Seq[Int] = {
    val all = spec.keySchema.indices
    spec match {
      case PrefixKeyScanStateEncoderSpec(_, prefix) => all.take(prefix)
      case RangeKeyScanStateEncoderSpec(_, ordering) => all.diff(ordering)
      // The key is followed by what makes it unique: a join's index of the value, or its event time.
      case _: TimestampAsPrefixKeyStateEncoderSpec | _: TimestampAsPostfixKeyStateEncoderSpec => all.dropRight(1)
      case _ if name.endsWith("keyWithIndexToValue") => all.dropRight(1)
      case _ => all
    }
  }

  /** A function from a key row (or a row of its leading columns) to the hash. Not thread-safe. */
  def hash(schema: StructType, columns: Seq[Int]): UnsafeRow => Int =
    if (columns.isEmpty) {
      _ => NoColumns
    } else {
      val references = columns.map(i => BoundReference(i, schema(i).dataType, schema(i).nullable))
      val projection = UnsafeProjection.create(Seq(new CollationAwareMurmur3Hash(references)))
      row => projection(row).getInt(0)
    }
}
