package org.apache.spark.sql.ckpt
package codec

import java.io.ByteArrayOutputStream

import scala.collection.mutable

import org.apache.avro.generic.{GenericDatumReader, GenericDatumWriter}
import org.apache.avro.io.{DecoderFactory, EncoderFactory}

import org.apache.spark.sql.avro.{AvroDeserializer, AvroOptions, AvroSerializer, SchemaConverters}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.{StateSchemaMetadataKey, StateSchemaProvider}
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
    if (id == current) row else readers.getOrElseUpdate(id, reader(schemas(id), schemas.last))(row)

  private def reader(from: StructType, to: StructType): UnsafeRow => UnsafeRow = {
    val (written, read) = (SchemaConverters.toAvroTypeWithDefaults(from), SchemaConverters.toAvroTypeWithDefaults(to))
    val options = AvroOptions(Map.empty)
    val serializer = new AvroSerializer(from, written, nullable = false)
    val deserializer = new AvroDeserializer(
      read, to, options.datetimeRebaseModeInRead, options.useStableIdForUnionType, options.stableIdPrefixForUnionType,
      options.recursiveFieldMaxDepth)
    val projection = UnsafeProjection.create(to)
    val (writer, records) = (new GenericDatumWriter[Any](written), new GenericDatumReader[Any](written, read))
    row => {
      val bytes = new ByteArrayOutputStream
      val encoder = EncoderFactory.get().directBinaryEncoder(bytes, null)
      writer.write(serializer.serialize(row), encoder)
      encoder.flush()
      val record = records.read(null, DecoderFactory.get().binaryDecoder(bytes.toByteArray, null))
      projection(deserializer.deserialize(record).get.asInstanceOf[InternalRow]).copy()
    }
  }
}

private[ckpt] object ValueHistory {

  /** The schemas of the values of a column family that Spark allows to evolve. */
  def schemas(provider: StateSchemaProvider, family: String): Seq[StructType] =
    (0 to provider.getCurrentStateSchemaId(family, isKey = false)).map { id =>
      provider.getSchemaMetadataValue(StateSchemaMetadataKey(family, id.toShort, isKey = false)).sqlSchema
    }
}
