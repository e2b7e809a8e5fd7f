package org.apache.spark.sql.ckpt.store

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.ckpt.codec.{Families, Family, FamilySpec}
import org.apache.spark.sql.ckpt.minor.codec.StoreErrors
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.sql.ckpt.transactions.Begun

/** The column families of one transaction: those of its base version, with its own creations and drops.
  *
  * Other transactions see its changes only after it has committed. Reading a family creates nothing. Not thread-safe:
  * callers hold the transaction's lock.
  */
private[ckpt] final class OpenFamilies(families: Families, begun: Begun) {
  private val created = mutable.LinkedHashMap.empty[String, FamilySpec]
  private val dropped = mutable.HashSet.empty[String]
  private val numbers = mutable.HashMap.empty[String, Int] // those that the server has confirmed for this transaction
  private val readers = mutable.HashMap.empty[String, Option[Family]]
  private val writers = mutable.HashMap.empty[String, Family]
  private val codecs = families.takeCodecs()

  def names: Set[String] = stored.filterNot(dropped) ++ created.keySet + Families.Default

  def create(spec: FamilySpec): Unit = {
    families.checkName("create_col_family", spec.name, spec.internal)
    if (spec.name != Families.Default && !created.contains(spec.name)) {
      created(spec.name) = families.remember(spec)
      forget(spec.name)
    }
  }

  /** The family to read from; None if this version does not have its state. */
  def toRead(operation: String, name: String): Option[Family] = readers.getOrElseUpdate(
    name, {
      val spec = specOf(operation, name)
      val number = numbers.get(name)
        .orElse(if (dropped.contains(name)) None else families.numberIn(begun.states, spec))
      number.map(codec(spec, _))
    })

  /** The family to read from, or an empty one if there is none, for use of its codecs. */
  def described(operation: String, name: String): Family =
    toRead(operation, name).getOrElse {
      val spec = specOf(operation, name)
      codec(spec, OpenFamilies.noRows(spec))
    }

  /** The family to write to. */
  def toWrite(operation: String, name: String): Family = writers.getOrElseUpdate(
    name, {
      val spec = specOf(operation, name)
      val family = codec(spec, numberToWrite(spec))
      readers(name) = Some(family)
      family
    })

  /** Drops a family. None if it does not exist; else its number, if it may have rows, which the caller deletes. */
  def drop(name: String): Option[Option[Int]] = {
    val wasStored = !dropped.contains(name) && stored.contains(name)
    val known = numbers.get(name)
      .orElse(if (wasStored) Families.stateIn(begun.states, name).map(_.get("number").asInt) else None)
    val existed = created.remove(name).isDefined || known.isDefined
    known.foreach(_ => begun.server.call("drop_state", Json.obj().put("txn", begun.number).put("name", name)))
    if (wasStored) dropped += name
    numbers.remove(name)
    forget(name)
    if (existed) Some(known) else None
  }

  /** Gives the next version the families that were created or read, but not written. Also the present description of a
    * store's only state: partitions without rows have the same one as the others, so their states can be merged.
    */
  def settle(): Unit = {
    val asked = readers.iterator.collect { case (name, None) => name }.toSeq
    val only = Some(families.default.name).filter(name => !families.areSeveral && stored.contains(name))
    (created.keysIterator.toSeq ++ asked ++ only).distinct.foreach(toWrite("commit", _))
  }

  def close(): Unit = families.giveBackCodecs(codecs)

  private def stored: Set[String] = begun.states.elements.asScala.map(_.get("name").asText).toSet

  private def forget(name: String): Unit = {
    readers.remove(name)
    writers.remove(name)
  }

  private def specOf(operation: String, name: String): FamilySpec = {
    families.checkUse(operation, name)
    if (name == Families.Default) {
      families.default
    } else if (created.contains(name)) {
      created(name)
    } else if (!dropped.contains(name) && stored.contains(name)) {
      families.spec(operation, name)
    } else {
      throw StoreErrors.missingFamily(operation, name)
    }
  }

  /** Asks the server if this version has no such state, has it with another descriptor, or has dropped it. */
  private def numberToWrite(spec: FamilySpec): Int = numbers.getOrElseUpdate(
    spec.name, {
      val unchanged = Families.stateIn(begun.states, spec.name)
        .filter(state => !dropped.contains(spec.name) && state.get("descriptor") == spec.descriptor)
      unchanged.map(_.get("number").asInt).getOrElse {
        val request = Json.obj().put("txn", begun.number).put("name", spec.name)
        request.set[ObjectNode]("descriptor", spec.descriptor)
        begun.server.call("create_state", request).get("number").asInt
      }
    })

  private def codec(spec: FamilySpec, number: Int): Family =
    codecs.getOrElseUpdate((spec, number), families.numbered(spec, number))
}

private[ckpt] object OpenFamilies {

  /** The number for a state without rows; no stored state has it. */
  private def noRows(spec: FamilySpec): Int = if (spec.descriptor.get("ordered").asBoolean) 0xffff else 0x7fff
}
