package org.apache.spark.sql.ckpt.settings

import java.util.Locale

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.commons.text.similarity.LevenshteinDistance

/** `state_store/options.json`, the only table of options: a resource of this jar and a file of the Python package.
  *
  * Values are read as in Python, see `state_store/options.py`. `tests/golden/options.json` holds both to that.
  */
private[ckpt] object OptionTable {
  val Prefix = "spark.sql.streaming.stateStore.ckpt."

  private val Number = raw"\s*([0-9]{1,18})\s*([a-zA-Z]*)\s*".r
  private val Fraction = raw"\s*([0-9]{1,9})\.([0-9]{1,9})\s*([a-zA-Z]*)\s*".r

  private lazy val table: JsonNode = Json.resource("options.json")
  private def options: JsonNode = table.get("options")

  /** How the memory of one executor is divided. */
  def memory: JsonNode = table.get("memory")

  /** How many numbers of a query's runs are kept. */
  def runs: JsonNode = table.get("runs")

  def keys: Seq[String] = options.fieldNames.asScala.toSeq

  def default(key: String): String = options.get(key).get("default").asText

  /** `` Did you mean 'x'?`` for the key that is most like `name`, in any case; empty if none is. */
  def suggest(name: String): String = {
    def distance(key: String): Int =
      LevenshteinDistance.getDefaultInstance.apply(name.toLowerCase(Locale.ROOT), key.toLowerCase(Locale.ROOT))
    val nearest = keys.minBy(distance)
    if (distance(nearest) * 5 <= name.length * 2) s" Did you mean '$nearest'?" else ""
  }

  /** Whether a process keeps the value of its first query. */
  def isOfProcess(key: String): Boolean = options.get(key).path("process").asBoolean

  def hint(key: String): String = {
    val default = options.get(key).get("default")
    s"${options.get(key).get("doc").asText} Default: ${if (default.isTextual) s"'${default.asText}'" else default}."
  }

  /** The value in its canonical form, or why it is refused. A value of a list gets the list's case, a number loses its
    * spaces, its unit gets lower case, and other text stays as it is.
    */
  def read(key: String, value: String): Either[String, String] = {
    val row = options.get(key)
    val kind = row.get("type").asText
    if (row.hasNonNull("values")) {
      val allowed = row.get("values").elements.asScala.map(_.asText).toSeq
      allowed.find(_.equalsIgnoreCase(value.trim)).toRight(s"it must be one of ${allowed.mkString(", ")}")
    } else if (kind == "string") {
      Right(value)
    } else {
      number(kind, value).flatMap(inRange(row, _)).map(_ => value.filterNot(_.isWhitespace).toLowerCase(Locale.ROOT))
    }
  }

  /** The number that `text` stands for, in the smallest unit of the type, or why it is refused. */
  def number(typeName: String, text: String): Either[String, Long] = {
    val kind = table.get("types").get(typeName)
    val units = kind.get("units").properties.asScala.toSeq.map(each => each.getKey -> each.getValue.asLong)
    def size(unit: String): Option[Long] =
      units.collectFirst { case (name, size) if name == unit.toLowerCase(Locale.ROOT) => size }
    def examples = s"it must be ${kind.get("examples").asText}"
    text match {
      case Number(digits, unit) =>
        size(unit).toRight(examples).map(BigInt(digits) * _).filterOrElse(
          _.isValidLong, "it must be less than 2**63 of the smallest unit").map(_.toLong)
      case Fraction(whole, part, unit) =>
        Left(size(unit).fold(examples) { largest =>
          val instead = wholeNumbers(units, BigInt(whole + part) * largest, BigInt(10).pow(part.length), largest)
          s"it must be a whole number: write ${instead.map(quote).mkString(" or ")} instead of ${quote(text.trim)}"
        })
      case _ => Left(examples)
    }
  }

  private def quote(text: String): String = "\"" + text + "\""

  /** What to write for `amount / scale` of the smallest unit, which was given with a decimal point, in a unit of
    * size `largest`.
    */
  private def wholeNumbers(units: Seq[(String, Long)], amount: BigInt, scale: BigInt, largest: Long): Seq[String] = {
    val names = units.filter(_._2 <= largest).groupBy(_._2)
      .map { case (size, all) => size -> all.map(_._1).find(_.nonEmpty).getOrElse("") }
    val sizes = names.keys.toSeq.sorted.reverse
    def count(size: Long): BigInt = amount / (scale * size)
    sizes.find(size => amount % (scale * size) == 0)
      .orElse(sizes.find(size => size < largest && count(size) > 0)) match {
      case Some(size) => Seq(s"${count(size)}${names(size)}")
      case None => Seq(0, 1).map(more => s"${count(sizes.last) + more}${names(sizes.last)}")
    }
  }

  private def inRange(row: JsonNode, value: Long): Either[String, Long] = {
    val size = table.get("types").get(row.get("type").asText).get("unit").asLong
    def limit(name: String): Option[BigInt] =
      if (row.hasNonNull(name)) Some(BigInt(row.get(name).asLong) * size) else None
    def text(name: String) = s"${row.get(name).asText} ${row.path("unit").asText}".trim
    if (limit("min").exists(BigInt(value) < _)) Left(s"it must be at least ${text("min")}")
    else if (limit("max").exists(BigInt(value) > _)) Left(s"it must be at most ${text("max")}")
    else Right(value)
  }
}
