package org.apache.spark.sql.ckpt
package server

import java.nio.file.{Path, Paths}
import java.util.Locale

import scala.concurrent.duration._
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.rocksdb.CompressionType

import org.apache.spark.SparkEnv
import org.apache.spark.util.Utils

/** The options of `spark.sql.streaming.stateStore.ckpt.*` that this process was started with.
  *
  * Their only table is `state_store/options.json`, a resource of this jar and a file of the Python package.
  */
private[ckpt] final case class Settings(options: Map[String, String]) {

  lazy val budget: MemoryBudget = new MemoryBudget(Settings.number("bytes", value("memoryLimit")).get)

  def startTimeout: FiniteDuration = Settings.number("seconds", value("startTimeout")).get.micros

  def compression: CompressionType = value("compression") match {
    case "lz4" => CompressionType.LZ4_COMPRESSION
    case "zstd" => CompressionType.ZSTD_COMPRESSION
    case "none" => CompressionType.NO_COMPRESSION
  }

  /** The option, else Spark's own choice of the workers' Python. */
  def python: String = {
    val conf = Option(SparkEnv.get).map(_.conf)
    Seq(
      Some(value("python")),
      conf.flatMap(_.getOption("spark.pyspark.python")),
      sys.env.get("PYSPARK_PYTHON")).flatten.find(_.nonEmpty).getOrElse("python3")
  }

  def hasLocalFolder: Boolean = value("localDir").nonEmpty

  /** The folder for local files: the option, else the executor's own block-manager folder. */
  def localFolder: Path = value("localDir") match {
    case "" =>
      Option(SparkEnv.get).flatMap(env => env.blockManager.diskBlockManager.localDirs.headOption) match {
        case Some(folder) => folder.toPath
        case None => Paths.get(Utils.getLocalDir(new org.apache.spark.SparkConf))
      }
    case path => Paths.get(path)
  }

  def remote: String = value("remote")

  def text: String =
    if (options.isEmpty) "no options"
    else options.toSeq.sorted.map { case (key, value) => s"$key=$value" }.mkString(", ")

  private def value(key: String): String = options.getOrElse(key, Settings.default(key))
}

private[ckpt] object Settings {
  val Prefix = "spark.sql.streaming.stateStore.ckpt."

  /** The syntax of a number, the same as in Python: see `state_store/options.py`. */
  private val Number = raw"\s*([0-9]{1,18})\s*([a-zA-Z]*)\s*".r

  private lazy val table: JsonNode = {
    val stream = getClass.getResourceAsStream("/pyspark_ckpt/options.json")
    try Json.mapper.readTree(stream)
    finally stream.close()
  }

  private def types: JsonNode = table.get("types")
  private def options: JsonNode = table.get("options")

  def default(key: String): String = options.get(key).get("default").asText

  /** Selects the options from a session's settings; refuses an unknown or bad one by name. */
  def from(sqlConfs: Map[String, String]): Settings = {
    val asked = sqlConfs.collect { case (key, value) if key.startsWith(Prefix) => key.drop(Prefix.length) -> value }
    asked.foreach { case (key, value) => check(key, value) }
    Settings(asked.map { case (key, value) => key -> canonical(key, value) })
  }

  private def check(key: String, value: String): Unit = {
    val known = options.fieldNames.asScala.toSeq
    if (!known.contains(key)) {
      throw CkptErrors.invalidInput(
        s"There is no option $Prefix$key.", s"Known options: ${known.sorted.mkString(", ")}.")
    }
    val entry = options.get(key)
    val problem =
      if (entry.hasNonNull("values")) {
        Option.when(allowed(entry, value).isEmpty)(s"one of ${allowedValues(entry).mkString(", ")}")
      } else if (entry.get("type").asText == "string") {
        None
      } else {
        val kind = types.get(entry.get("type").asText)
        number(kind, value).fold(Option(kind.get("examples").asText))(beyond(entry, _, kind.get("unit").asLong))
      }
    problem.foreach { wanted =>
      throw CkptErrors.invalidInput(s"Option $Prefix$key has the value '$value'.", s"It must be $wanted.")
    }
  }

  private def allowedValues(entry: JsonNode): Seq[String] = entry.get("values").elements.asScala.map(_.asText).toSeq

  /** The value of an option's list that `value` means, in whatever case. */
  private def allowed(entry: JsonNode, value: String): Option[String] =
    allowedValues(entry).find(_.equalsIgnoreCase(value.trim))

  /** The value; one of a list is written in the case of the list. */
  private def canonical(key: String, value: String): String = {
    val entry = options.get(key)
    if (entry.hasNonNull("values")) allowed(entry, value).getOrElse(value) else value
  }

  /** The number that `text` stands for, in the smallest unit of the type; None if it is no number of this type. */
  private[ckpt] def number(typeName: String, text: String): Option[Long] = number(types.get(typeName), text)

  private def number(kind: JsonNode, text: String): Option[Long] = text match {
    case Number(digits, unit) =>
      Option(kind.get("units").get(unit.toLowerCase(Locale.ROOT))).map(each => BigInt(digits) * each.asLong)
        .filter(_.isValidLong).map(_.toLong)
    case _ => None
  }

  private def beyond(entry: JsonNode, value: Long, unit: Long): Option[String] = {
    def limit(name: String): Option[BigInt] = Option.when(entry.hasNonNull(name))(BigInt(entry.get(name).asLong) * unit)
    if (limit("min").exists(BigInt(value) < _)) Some(s"at least ${entry.get("min").asText}")
    else if (limit("max").exists(BigInt(value) > _)) Some(s"at most ${entry.get("max").asText}")
    else None
  }
}
