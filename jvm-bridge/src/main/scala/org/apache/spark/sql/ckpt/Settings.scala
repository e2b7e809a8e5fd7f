package org.apache.spark.sql.ckpt

import java.nio.file.{Path, Paths}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.rocksdb.CompressionType

import org.apache.spark.SparkEnv
import org.apache.spark.network.util.JavaUtils
import org.apache.spark.util.Utils

/** The options of `spark.sql.streaming.stateStore.ckpt.*` that this process was started with.
  *
  * Their one table is `state_store/options.json`, a resource of this jar and a file of the Python package.
  */
private[ckpt] final case class Settings(options: Map[String, String]) {

  lazy val budget: MemoryBudget = new MemoryBudget(JavaUtils.byteStringAsBytes(value("memoryLimit")))

  def startTimeoutSeconds: Long = JavaUtils.timeStringAsSec(value("startTimeout"))

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

  /** Where local files go: the option, else the executor's own block-manager folder. */
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

  private lazy val table: JsonNode = {
    val stream = getClass.getResourceAsStream("/pyspark_ckpt/options.json")
    try Json.mapper.readTree(stream)
    finally stream.close()
  }

  def default(key: String): String = table.get(key).get("default").asText

  /** Picks the options out of a session's settings; an unknown or bad one is refused by name. */
  def from(sqlConfs: Map[String, String]): Settings = {
    val options = sqlConfs.collect { case (key, value) if key.startsWith(Prefix) => key.drop(Prefix.length) -> value }
    options.foreach { case (key, value) => check(key, value) }
    Settings(options)
  }

  private def check(key: String, value: String): Unit = {
    val known = table.fieldNames.asScala.toSeq
    if (!known.contains(key)) {
      throw CkptErrors.invalidInput(s"unknown option $Prefix$key", s"known options: ${known.sorted.mkString(", ")}")
    }
    val entry = table.get(key)
    val problem = entry.get("type").asText match {
      case "bytes" => attempt("a size such as 256m")(JavaUtils.byteStringAsBytes(value)).orElse(beyond(entry,
            JavaUtils.byteStringAsBytes(value)))
      case "seconds" => attempt("a time such as 60s")(JavaUtils.timeStringAsSec(value)).orElse(beyond(entry,
            JavaUtils.timeStringAsSec(value)))
      case "int" => attempt("a whole number")(value.toInt.toLong).orElse(beyond(entry, value.toLong))
      case "enum" =>
        val allowed = entry.get("values").elements.asScala.map(_.asText).toSeq
        if (allowed.contains(value)) None else Some(s"one of ${allowed.mkString(", ")}")
      case _ => None
    }
    problem.foreach { wanted =>
      throw CkptErrors.invalidInput(s"option $Prefix$key has the value '$value'", s"it takes $wanted")
    }
  }

  private def attempt(wanted: String)(parse: => Long): Option[String] =
    try {
      parse
      None
    } catch {
      case _: IllegalArgumentException => Some(wanted)
    }

  private def beyond(entry: JsonNode, value: Long): Option[String] =
    if (entry.hasNonNull("min") && value < entry.get("min").asLong) Some(s"at least ${entry.get("min").asText}")
    else if (entry.hasNonNull("max") && value > entry.get("max").asLong) Some(s"at most ${entry.get("max").asText}")
    else None
}
