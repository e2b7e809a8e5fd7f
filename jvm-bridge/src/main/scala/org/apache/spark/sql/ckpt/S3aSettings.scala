package org.apache.spark.sql.ckpt

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

/** What the user has set for S3A, Hadoop's connector to S3, as far as the state server can use it (`blobs/s3a.py` knows
  * what it means). Not a case class: nothing may print it.
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
  private val HadoopCredentialFiles = "hadoop.security.credential.provider.path"

  /** The settings for the buckets of those `places` that are S3A's. */
  def of(conf: Configuration, places: Seq[String]): S3aSettings = {
    val buckets = places.filter(_.startsWith("s3a:")).map(new Path(_).toUri.getAuthority).distinct
    if (buckets.isEmpty) new S3aSettings(Map.empty, Map.empty)
    else {
      val scopes = Prefix +: buckets.map(bucket => s"${Prefix}bucket.$bucket.")
      val withFiles = withCredentialFiles(conf, scopes)
      new S3aSettings(
        collect(scopes, Plain)(key => Option(conf.get(key))),
        collect(scopes, Secret)(key => Option(withFiles.getPassword(key)).map(new String(_))))
    }
  }

  private def collect(scopes: Seq[String], names: Seq[String])(value: String => Option[String]): Map[String, String] =
    (for (scope <- scopes; name <- names; found <- value(scope + name)) yield (scope + name) -> found).toMap

  /** S3A looks into credential files of its own before it looks into Hadoop's. */
  private def withCredentialFiles(conf: Configuration, scopes: Seq[String]): Configuration = {
    val files = (scopes.reverse.map(_ + CredentialFiles) :+ HadoopCredentialFiles)
      .flatMap(key => Option(conf.getTrimmed(key))).filter(_.nonEmpty).distinct
    if (files.isEmpty) conf
    else {
      val extended = new Configuration(conf)
      extended.set(HadoopCredentialFiles, files.mkString(","))
      extended
    }
  }
}
