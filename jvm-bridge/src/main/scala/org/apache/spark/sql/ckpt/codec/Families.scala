package org.apache.spark.sql.ckpt.codec

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.minor.KeyStateEncoderSpec
import org.apache.spark.sql.ckpt.minor.codec.StoreErrors
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.sql.types.StructType

/** Spark's description of one column family ("default" if a store has only one state).
  *
  * `valueSchemas`: what the schema of the values has been, by Spark's id, up to the present one; none if it may not
  * evolve.
  */
private[ckpt] final case class FamilySpec(
    name: String,
    keySchema: StructType,
    valueSchema: StructType,
    encoder: KeyStateEncoderSpec,
    multipleValues: Boolean,
    internal: Boolean,
    valueSchemas: Seq[StructType]) {

  /** The descriptor that the server stores; readers must not change it. */
  lazy val descriptor: ObjectNode = {
    val node = Json.obj()
    node.put("ordered", KeyCodec.needsOrder(encoder)).put("multiple_values", multipleValues).put("internal", internal)
    node.set[ObjectNode]("key_schema", Json.mapper.readTree(keySchema.json))
    node.set[ObjectNode]("value_schema", Json.mapper.readTree(valueSchema.json))
    node.set[ObjectNode]("key_encoder", Json.mapper.readTree(encoder.json))
    if (valueSchemas.nonEmpty) {
      val schemas = node.putArray("value_schemas")
      valueSchemas.foreach(schema => schemas.add(Json.mapper.readTree(schema.json)))
    }
    node
  }
}

/** A column family as a transaction works with it: its state number and its codecs. Not thread-safe. */
private[ckpt] final class Family(val spec: FamilySpec, val number: Int, storeName: String) {
  val keys: KeyCodec =
    KeyCodec.create(if (spec.name == Families.Default) storeName else spec.name, number, spec.encoder, spec.valueSchema)
  val values = new ValueCodec(
    spec.valueSchema.length, spec.multipleValues,
    if (spec.valueSchemas.isEmpty) None else Some(new ValueHistory(spec.valueSchemas)))
}

/** The column families that Spark has named to one store, for any version or attempt: how their rows are read. Only a
  * transaction knows which families exist.
  *
  * `areSeveral`: whether Spark may register others in addition to `default`.
  */
private[ckpt] final class Families(val areSeveral: Boolean, storeName: String, val default: FamilySpec) {
  import Families._

  private val specs = new ConcurrentHashMap[String, FamilySpec]
  private val idleCodecs = new ConcurrentLinkedQueue[Codecs]
  specs.put(default.name, default)

  /** Remembers a family; returns the previous instance, with all that it caches, if the two are equal. */
  def remember(spec: FamilySpec): FamilySpec = {
    val before = specs.get(spec.name)
    if (before == spec) {
      before
    } else {
      specs.put(spec.name, spec)
      spec
    }
  }

  /** The last description that Spark gave for `name`, or null. */
  def known(name: String): FamilySpec = specs.get(name)

  /** The family that Spark has registered as `name`; fails if there is none. */
  def spec(operation: String, name: String): FamilySpec = {
    val found = known(name)
    if (found == null) throw StoreErrors.missingFamily(operation, name)
    found
  }

  /** Refuses the name of a family to create or to remove, as Spark's own store does. */
  def checkName(operation: String, name: String, internal: Boolean): Unit = {
    checkSeveral(operation)
    if (isInvalid(name) || name == Default && !internal) {
      throw StoreErrors.invalidFamily(operation, name)
    }
    if (!internal && name.startsWith("$")) throw StoreErrors.reservedFamily(name)
  }

  /** Refuses the name of a family to work with, as Spark's own store does. */
  def checkUse(operation: String, name: String): Unit = if (name != Default) {
    checkSeveral(operation)
    if (isInvalid(name)) throw StoreErrors.invalidFamily(operation, name)
  }

  private def checkSeveral(operation: String): Unit = if (!areSeveral) {
    throw StoreErrors.unsupported(operation, "multiple column families is disabled")
  }

  private def isInvalid(name: String): Boolean = name == null || name.isEmpty || name.trim != name

  /** The number of the rows of `spec` in a version with these states, if it has any; refuses a different layout. */
  def numberIn(states: JsonNode, spec: FamilySpec): Option[Int] = stateIn(states, spec.name).map { state =>
    Seq("ordered", "multiple_values").foreach { field =>
      val (stored, wanted) = (state.get("descriptor").get(field), spec.descriptor.get(field))
      if (stored != wanted) {
        throw CkptErrors.invalidInput(
          s"state '${spec.name}' of $storeName is stored with $field=$stored and read with $field=$wanted.",
          "")
      }
    }
    val evolves = state.get("descriptor").hasNonNull("value_schemas")
    if (evolves != spec.valueSchemas.nonEmpty) {
      val (stored, wanted) = if (evolves) ("avro", "unsaferow") else ("unsaferow", "avro")
      throw CkptErrors.invalidInput(
        s"state '${spec.name}' of $storeName is stored with the encoding $stored and read with $wanted.",
        s"Set spark.sql.streaming.stateStore.encodingFormat to $stored.")
    }
    state.get("number").asInt
  }

  /** A family whose rows have `number`, to decode them. */
  def numbered(spec: FamilySpec, number: Int): Family = new Family(spec, number, storeName)

  def takeCodecs(): Codecs = Option(idleCodecs.poll()).getOrElse(mutable.HashMap.empty)
  def giveBackCodecs(codecs: Codecs): Unit = idleCodecs.add(codecs)
}

private[ckpt] object Families {

  /** What Spark calls the family of a store that has only one. */
  final val Default = "default"

  /** The codecs of families, used by one transaction at a time. */
  type Codecs = mutable.HashMap[(FamilySpec, Int), Family]

  def stateIn(states: JsonNode, name: String): Option[JsonNode] =
    states.elements.asScala.find(_.get("name").asText == name)
}
