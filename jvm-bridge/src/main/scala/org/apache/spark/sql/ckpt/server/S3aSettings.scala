package org.apache.spark.sql.ckpt
package server

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.security.alias.{CredentialProvider, CredentialProviderFactory}
import org.apache.hadoop.security.alias.CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH

/** The user's settings for S3A, Hadoop's connector to S3, as far as the state server can use them:
  * `state_store/s3a_settings.py` interprets them. Not a case class: nothing may print it.
  */
private[ckpt] final class S3aSettings(val plain: Map[String, String], val secret: Map[String, String])

private[ckpt] object S3aSettings {
  private val Prefix = "fs.s3a."
  private val Plain = Seq(
    "endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled", "aws.credentials.provider",
    "encryption.algorithm", "server-side-encryption-algorithm")
  private val Secret =
    Seq("access.key", "secret.key", "session.token", "encryption.key", "server-side-encryption.key")
  private val CredentialFiles = "security.credential.provider.path"

  /** The settings for the buckets of those `places` that begin with `s3a:`. */
  def of(conf: Configuration, places: Seq[String]): S3aSettings = {
    val buckets = places.filter(_.startsWith("s3a:")).map(new Path(_).toUri.getAuthority).distinct
    if (buckets.isEmpty) new S3aSettings(Map.empty, Map.empty)
    else {
      val scopes = Prefix +: buckets.map(bucket => s"${Prefix}bucket.$bucket.")
      new S3aSettings(
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
