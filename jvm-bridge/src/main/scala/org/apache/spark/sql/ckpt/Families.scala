package org.apache.spark.sql.ckpt

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.execution.streaming.state.{KeyStateEncoderSpec, StateStore, StateStoreErrors}
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

/** The column families of one store: what Spark has registered, and what each transaction's base version holds.
  *
  * `areSeveral`: whether Spark may register others beside `default`.
  */
private[ckpt] final class Families(val areSeveral: Boolean, storeName: String, default: FamilySpec) {
  import Families._

  private val specs = new ConcurrentHashMap[String, FamilySpec]
  private val idleCodecs = new ConcurrentLinkedQueue[Codecs]
  specs.put(default.name, default)

  def names(begun: Begun): Set[String] =
    specs.keySet.asScala.toSet ++ begun.states.elements.asScala.map(_.get("name").asText)

  def register(spec: FamilySpec): Unit = {
    checkName("create_col_family", spec.name, spec.internal)
    specs.putIfAbsent(spec.name, spec)
  }

  /** Whether the family had been registered. */
  def unregister(name: String): Boolean = specs.remove(name) != null

  def checkName(operation: String, name: String, internal: Boolean): Unit = {
    if (!areSeveral) throw StateStoreErrors.unsupportedOperationException(operation, "column families are disabled")
    if (name == null || name.isEmpty || name.trim != name || name == StateStore.DEFAULT_COL_FAMILY_NAME) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }
    if (!internal && name.startsWith("_")) {
      throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
    }
  }

  /** The number of a state that the base version holds. */
  def storedNumber(begun: Begun, name: String): Option[Int] = stateOf(begun, name).map(_.get("number").asInt)

  private def stateOf(begun: Begun, name: String): Option[JsonNode] = stateIn(begun.states, name)

  private def stateIn(states: JsonNode, name: String): Option[JsonNode] =
    states.elements.asScala.find(_.get("name").asText == name)

  /** What Spark has registered under `name`. */
  def spec(operation: String, name: String): FamilySpec = {
    val found = specs.get(name)
    if (found == null) throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name)
    found
  }

  /** The number that rows of `spec` have in a version with these states, if it has any; refuses another layout of them. */
  def numberIn(states: JsonNode, spec: FamilySpec): Option[Int] = stateIn(states, spec.name).map { state =>
    Seq("ordered", "multiple_values").foreach { field =>
      val (stored, wanted) = (state.get("descriptor").get(field), spec.descriptor.get(field))
      if (stored != wanted) {
        throw CkptErrors.invalidInput(
          s"state '${spec.name}' of $storeName is stored with $field=$stored and read with $field=$wanted", "")
      }
    }
    state.get("number").asInt
  }

  /** A family whose rows have `number`, to decode them. */
  def numbered(spec: FamilySpec, number: Int): Family = new Family(spec, number, storeName)

  /** The column family for one transaction, its state number asked of the server when this version has none, has
    * another descriptor of it, or the transaction has dropped the one it had (`recreated`).
    */
  def family(operation: String, name: String, begun: Begun, codecs: Codecs, recreated: Boolean): Family = {
    val spec = this.spec(operation, name)
    val descriptor = spec.descriptor
    val stored = stateOf(begun, name).filter(state => !recreated && state.get("descriptor") == descriptor)
    val number = stored.map(_.get("number").asInt).getOrElse {
      val request = Json.obj().put("txn", begun.number).put("name", name)
      request.set[ObjectNode]("descriptor", descriptor)
      begun.server.call("create_state", request).get("number").asInt
    }
    codecs.getOrElseUpdate((name, number), new Family(spec, number, storeName))
  }

  def dropState(begun: Begun, name: String): Unit =
    begun.server.call("drop_state", Json.obj().put("txn", begun.number).put("name", name))

  def takeCodecs(): Codecs = Option(idleCodecs.poll()).getOrElse(mutable.HashMap.empty)
  def giveBackCodecs(codecs: Codecs): Unit = idleCodecs.add(codecs)
}

private[ckpt] object Families {

  /** What one transaction at a time has of families that it has worked with. */
  type Codecs = mutable.HashMap[(String, Int), Family]
}
