package org.apache.spark.sql.ckpt.minor.codec

import java.io.ByteArrayOutputStream

import org.apache.avro.generic.{GenericDatumReader, GenericDatumWriter}
import org.apache.avro.io.{DecoderFactory, EncoderFactory}

import org.apache.spark.sql.avro.{AvroDeserializer, AvroOptions, AvroSerializer, SchemaConverters}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types.StructType

private[ckpt] object ValueEvolution {

  /** Reads rows of one schema as rows of another, by Avro's rules of schema resolution. The function is not thread-safe.
    */
  def reader(from: StructType, to: StructType): UnsafeRow => UnsafeRow = {
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
