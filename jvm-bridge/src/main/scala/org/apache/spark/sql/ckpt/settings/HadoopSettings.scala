package org.apache.spark.sql.ckpt.settings

import java.util.Locale

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.security.alias.{CredentialProvider, CredentialProviderFactory}
import org.apache.hadoop.security.alias.CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH

/** The user's settings for Hadoop's connectors to S3, Google Cloud Storage and Azure, as far as the state server can use
  * them: `state_store/hadoop_settings.py` and `blobs/object_store` there interpret them. Not a case class: nothing may
  * print it.
  */
private[ckpt] final class HadoopSettings(val plain: Map[String, String], val secret: Map[String, String])

private[ckpt] object HadoopSettings {
  private val Prefix = "fs.s3a."
  private val Plain = Seq(
    "endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled", "aws.credentials.provider",
    "encryption.algorithm", "server-side-encryption-algorithm")
  private val Secret =
    Seq("access.key", "secret.key", "session.token", "encryption.key", "server-side-encryption.key")
  private val CredentialFiles = "security.credential.provider.path"

  /** How names of settings for Google Cloud Storage and Azure begin, and those among them that are no secrets. */
  private val Google = Seq("fs.gs.auth.", "google.cloud.auth.", "fs.gs.storage.root.url")
  private val Azure = Seq("fs.azure.account.", "fs.azure.sas.")
  private val Open =
    ".*(root\\.url|auth\\.type.*|\\.enable|\\.keyfile|\\.config\\.file|\\.email|keyprovider.*|provider\\.type.*)".r

  /** The settings for the buckets and accounts of those `places` that one of the connectors is for. */
  def of(conf: Configuration, places: Seq[String]): HadoopSettings = {
    val s3a = ofS3a(conf, places)
    val wanted = (if (names(places, "gs:")) Google else Nil) ++ (if (names(places, "abfs:", "abfss:")) Azure else Nil)
    if (wanted.isEmpty) s3a
    else {
      val keys = conf.iterator.asScala.map(_.getKey).filter(key => wanted.exists(key.startsWith)).toSeq ++
        inCredentialFiles(conf, wanted)
      val found = keys.distinct.flatMap(key => read(conf, key).map(key -> _)).toMap
      val (plain, secret) = found.partition { case (key, _) => Open.pattern.matcher(key).matches }
      new HadoopSettings(s3a.plain ++ plain, s3a.secret ++ secret)
    }
  }

  private def names(places: Seq[String], schemes: String*): Boolean =
    places.exists(place => schemes.exists(place.toLowerCase(Locale.ROOT).startsWith))

  /** The value, with the variables in it replaced; from Hadoop's credential files, if it is there. */
  private def read(conf: Configuration, key: String): Option[String] =
    Option(conf.getPassword(key)).map(new String(_)).map(_.trim).filter(_.nonEmpty)

  private def inCredentialFiles(conf: Configuration, wanted: Seq[String]): Seq[String] =
    if (Option(conf.getTrimmed(CREDENTIAL_PROVIDER_PATH)).forall(_.isEmpty)) Nil
    else CredentialProviderFactory.getProviders(conf).asScala.toSeq.flatMap(_.getAliases.asScala)
      .filter(key => wanted.exists(key.startsWith))

  /** The settings for the buckets of those `places` that begin with `s3a:`. */
  private def ofS3a(conf: Configuration, places: Seq[String]): HadoopSettings = {
    val buckets = places.filter(_.startsWith("s3a:")).map(new Path(_).toUri.getAuthority).distinct
    if (buckets.isEmpty) new HadoopSettings(Map.empty, Map.empty)
    else {
      val scopes = Prefix +: buckets.map(bucket => s"${Prefix}bucket.$bucket.")
      new HadoopSettings(
        collect(scopes, Plain)(key => Option(conf.get(key))),
        collect(scopes, Secret)(secretsIn(conf, scopes)))
    }
  }

  private def collect(scopes: Seq[String], names: Seq[String])(value: String => Option[String]): Map[String, String] =
    (for (scope <- scopes; name <- names; found <- value(scope + name)) yield (scope + name) -> found).toMap

  /** Looks secrets up in S3A's own credential files, in Hadoop's, then in the configuration. Reads the files once. */
  private def secretsIn(conf: Configuration, scopes: Seq[String]): String => Option[String] = {
    val files = (scopes.reverse.map(_ + CredentialFiles) :+ CREDENTIAL_PROVIDER_PATH)
      .flatMap(key => Option(conf.getTrimmed(key))).filter(_.nonEmpty).distinct
    if (files.isEmpty) key => Option(conf.get(key))
    else {
      val withFiles = new Configuration(conf)
      withFiles.set(CREDENTIAL_PROVIDER_PATH, files.mkString(","))
      val providers = CredentialProviderFactory.getProviders(withFiles).asScala
      val alsoPlain = conf.getBoolean(CredentialProvider.CLEAR_TEXT_FALLBACK, true)
      key =>
        providers.iterator.map(_.getCredentialEntry(key)).find(_ != null).map(entry => new String(entry.getCredential))
          .orElse(Option(conf.get(key)).filter(_ => alsoPlain))
    }
  }
}
