package org.apache.spark.sql.ckpt.settings

import scala.concurrent.duration._

import org.rocksdb.CompressionType

import org.apache.spark.SparkEnv
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.internal.SQLConf

/** The options of `spark.sql.streaming.stateStore.ckpt.*` that a query was started with, in their canonical form. */
private[ckpt] final case class Settings(options: Map[String, String]) {

  lazy val budget: MemoryBudget = new MemoryBudget(number("bytes", "memoryLimit"))

  def startTimeout: FiniteDuration = number("seconds", "startTimeout").micros

  def compression: CompressionType = value("compression") match {
    case "lz4" => CompressionType.LZ4_COMPRESSION
    case "zstd" => CompressionType.ZSTD_COMPRESSION
    case "none" => CompressionType.NO_COMPRESSION
  }

  /** Whether the whole state of a store is kept in memory. */
  def isInMemory: Boolean = value("backend") == "memory"

  /** The option, else Spark's own choice of the workers' Python. */
  def python: String = {
    val conf = Option(SparkEnv.get).map(_.conf)
    Seq(
      Some(value("python")),
      conf.flatMap(_.getOption("spark.pyspark.python")),
      sys.env.get("PYSPARK_PYTHON")).flatten.find(_.nonEmpty).getOrElse("python3")
  }

  def remote: String = value("remote")

  /** Whether a session without any provider has this one. */
  def isDefaultStore: Boolean = value("realTime") == "true"

  /** Those that a process keeps from its first query. */
  def ofProcess: Settings = Settings(options.filter { case (key, _) => OptionTable.isOfProcess(key) })

  /** Those that differ from the defaults. */
  def unusual: Settings = Settings(options.filter { case (key, value) => value != OptionTable.default(key) })

  def text: String =
    if (options.isEmpty) "no options"
    else options.toSeq.sorted.map { case (key, value) => s"$key=$value" }.mkString(", ")

  private def value(key: String): String = options.getOrElse(key, OptionTable.default(key))

  private def number(typeName: String, key: String): Long =
    OptionTable.number(typeName, value(key)).fold(problem => throw Settings.refusal(key, value(key), problem), identity)
}

private[ckpt] object Settings {
  val Prefix: String = OptionTable.Prefix
  private val EveryVersions = "snapshotEveryVersions"

  /** Selects the options from a session's settings; refuses an unknown or bad one by name. */
  def from(sqlConfs: Map[String, String]): Settings = {
    val asked = sqlConfs.collect { case (key, value) if key.startsWith(Prefix) => key.drop(Prefix.length) -> value }
    Settings((general(sqlConfs) ++ asked).map { case (key, value) => key -> read(key, value) })
  }

  /** What Spark's settings for all state stores say, where an option of ours has the same meaning. */
  private def general(sqlConfs: Map[String, String]): Map[String, String] =
    sqlConfs.get(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.key).filter(_.toInt > 0).map(EveryVersions -> _).toMap

  private def read(key: String, value: String): String = {
    if (!OptionTable.keys.contains(key)) {
      throw CkptErrors.invalidInput(
        s"There is no option $Prefix$key.${OptionTable.suggest(key)}",
        s"Known options: ${OptionTable.keys.sorted.mkString(", ")}.")
    }
    OptionTable.read(key, value).fold(problem => throw refusal(key, value, problem), identity)
  }

  private def refusal(key: String, value: String, problem: String): CkptException =
    CkptErrors.invalidInput(s"Option $Prefix$key has the value '$value': $problem.", OptionTable.hint(key))
}
