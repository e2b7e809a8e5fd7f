package org.apache.spark.sql.ckpt

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec
import org.apache.spark.sql.types.StructType

/** What Spark says of one column family ("default" where a store has one state only). */
private[ckpt] final case class FamilySpec(
    name: String,
    keySchema: StructType,
    valueSchema: StructType,
    encoder: KeyStateEncoderSpec,
    multipleValues: Boolean,
    internal: Boolean) {

  /** What the server stores of the state; not to be changed by who reads it. */
  lazy val descriptor: ObjectNode = {
    val node = Json.obj()
    node.put("ordered", KeyCodec.needsOrder(encoder)).put("multiple_values", multipleValues).put("internal", internal)
    node.set[ObjectNode]("key_schema", Json.mapper.readTree(keySchema.json))
    node.set[ObjectNode]("value_schema", Json.mapper.readTree(valueSchema.json))
    node.set[ObjectNode]("key_encoder", Json.mapper.readTree(encoder.json))
    node
  }
}

/** A column family as a transaction works with it: its state number and its codecs. Not thread-safe. */
private[ckpt] final class Family(val spec: FamilySpec, val number: Int, storeName: String) {
  val keys: KeyCodec =
    KeyCodec.create(if (spec.name == "default") storeName else spec.name, number, spec.encoder, spec.valueSchema)
  val values = new ValueCodec(spec.valueSchema.length, spec.multipleValues)
}
