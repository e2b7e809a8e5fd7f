package org.apache.spark.sql.ckpt.codec

import org.apache.spark.sql.catalyst.expressions.{
  BoundReference,
  Expression,
  GetStructField,
  UnsafeProjection,
  UnsafeRow
}
import org.apache.spark.sql.ckpt.minor.{KeyStateEncoderSpec, PartitionHash, PrefixKeyScanStateEncoderSpec}
import org.apache.spark.sql.ckpt.minor.codec.KeyEncoding
import org.apache.spark.sql.types.StructType

/** The columns of a state key by which Spark partitioned the operator's input, and their hash.
  *
  * The hash is that of `HashPartitioning` (Murmur3, seed 42, aware of collations), so the partition of a row is
  * `pmod(hash, n)` for any n. Spark's StatePartitionKeyExtractorFactory finds the columns by operator name; here they
  * follow from the name of the store or column family and from the key encoder.
  */
private[ckpt] object PartitionKey {

  /** The hash of a key without columns, of an operator whose rows are all in partition 0. */
  private val NoColumns = 42

  private val EntryFields = Array("key", "userKey")

  /** Spark's prefix for the column family of transformWithState that has the times at which a state's rows expire.
    * Source: `StateStoreColumnFamilySchemaUtils.getTtlColFamilyName`.
    */
  private final val Expiry = "$ttl_"

  def columns(name: String, spec: KeyStateEncoderSpec): Seq[Int] = {
    val all = spec.keySchema.indices
    spec match {
      case PrefixKeyScanStateEncoderSpec(_, prefix) => all.take(prefix)
      // After the key comes what makes it unique: the event time, or a join's index of the value.
      case _ if KeyEncoding.isOfEventTime(spec) => all.dropRight(1)
      case _ if name.endsWith("keyWithIndexToValue") => all.dropRight(1)
      case _ => KeyEncoding.orderedColumns(spec).fold[Seq[Int]](all)(all.diff(_))
    }
  }

  /** Whether the keys belong to map entries, in the order in which they expire. After the instant they have one column:
    * the operator's key and the key in the map. Only the operator's key decides the partition.
    */
  private def isOfEntries(name: String, spec: KeyStateEncoderSpec): Boolean =
    name.startsWith(Expiry) &&
      (columns(name, spec).map(spec.keySchema(_).dataType) match {
        case Seq(entry: StructType) =>
          entry.fieldNames.sameElements(EntryFields) && entry.forall(_.dataType.isInstanceOf[StructType])
        case _ => false
      })

  /** A function from a key row (or a row of its leading columns) to the hash. Not thread-safe. */
  def hash(name: String, spec: KeyStateEncoderSpec): UnsafeRow => Int = {
    val ofColumns = references(spec.keySchema, columns(name, spec))
    hashOf(if (isOfEntries(name, spec)) ofColumns.map(GetStructField(_, 0)) else ofColumns)
  }

  /** The same for some columns of keys with a schema. */
  def hash(schema: StructType, columns: Seq[Int]): UnsafeRow => Int = hashOf(references(schema, columns))

  private def references(schema: StructType, columns: Seq[Int]): Seq[Expression] =
    columns.map(i => BoundReference(i, schema(i).dataType, schema(i).nullable))

  private def hashOf(values: Seq[Expression]): UnsafeRow => Int =
    if (values.isEmpty) {
      _ => NoColumns
    } else {
      val projection = UnsafeProjection.create(Seq(new PartitionHash(values)))
      row => projection(row).getInt(0)
    }
}
