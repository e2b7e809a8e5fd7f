package org.apache.spark.sql.ckpt
package server

import java.nio.file.Files

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.security.alias.CredentialProviderFactory
import org.scalatest.funsuite.AnyFunSuite

class S3aSettingsSuite extends AnyFunSuite {
  private val places = Seq("s3a://one/checkpoint", "file:/tmp/x")

  private def conf(settings: (String, String)*): Configuration = {
    val made = new Configuration(false)
    settings.foreach { case (key, value) => made.set(key, value) }
    made
  }

  test("hands over what is set for the buckets of the places, secrets apart") {
    val found = S3aSettings.of(
      conf(
        "fs.s3a.endpoint" -> "a", "fs.s3a.bucket.one.endpoint" -> "b", "fs.s3a.bucket.two.endpoint" -> "c",
        "fs.s3a.access.key" -> "k", "fs.s3a.bucket.one.secret.key" -> "s", "fs.s3a.encryption.key" -> "e",
        "fs.s3a.threads.max" -> "9"),
      places)
    assert(found.plain == Map("fs.s3a.endpoint" -> "a", "fs.s3a.bucket.one.endpoint" -> "b"))
    assert(
      found.secret ==
        Map("fs.s3a.access.key" -> "k", "fs.s3a.bucket.one.secret.key" -> "s", "fs.s3a.encryption.key" -> "e"))
    assert(!found.toString.contains("Map"))
  }

  test("hands over nothing when no place is S3A's") {
    val found = S3aSettings.of(conf("fs.s3a.endpoint" -> "a", "fs.s3a.access.key" -> "k"), Seq("s3://one/x", "", "/x"))
    assert(found.plain.isEmpty && found.secret.isEmpty)
  }

  test("reads keys from credential files, S3A's own first") {
    val folder = Files.createTempDirectory("credentials")
    try {
      def file(name: String, secret: String): String = {
        val path = s"localjceks://file${folder.resolve(name)}"
        val provider =
          CredentialProviderFactory.getProviders(conf(CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH -> path)).get(
            0)
        provider.createCredentialEntry("fs.s3a.secret.key", secret.toCharArray)
        provider.flush()
        path
      }
      val settings = conf(
        CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH -> file("hadoop.jceks", "general"),
        "fs.s3a.security.credential.provider.path" -> file("s3a.jceks", "own"),
        "fs.s3a.access.key" -> "k")
      assert(S3aSettings.of(settings, places).secret == Map("fs.s3a.secret.key" -> "own", "fs.s3a.access.key" -> "k"))
    } finally Readers.deleteFolder(folder)
  }
}
