package org.apache.spark.sql.ckpt.settings

import java.nio.file.Files

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.security.alias.CredentialProviderFactory
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.server.LocalFolder

class HadoopSettingsSuite extends AnyFunSuite {
  private val places = Seq("s3a://one/checkpoint", "file:/tmp/x")

  private def conf(settings: (String, String)*): Configuration = {
    val made = new Configuration(false)
    settings.foreach { case (key, value) => made.set(key, value) }
    made
  }

  test("hands over what is set for the buckets of the places, secrets apart") {
    val found = HadoopSettings.of(
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
    val found =
      HadoopSettings.of(conf("fs.s3a.endpoint" -> "a", "fs.s3a.access.key" -> "k"), Seq("s3://one/x", "", "/x"))
    assert(found.plain.isEmpty && found.secret.isEmpty)
  }

  test("hands over what is set for Google Cloud Storage and Azure, secrets apart, to places there alone") {
    val host = "account.dfs.core.windows.net"
    val settings = conf(
      "fs.gs.auth.type" -> "UNAUTHENTICATED", "google.cloud.auth.service.account.json.keyfile" -> "/k.json",
      "fs.gs.auth.service.account.private.key" -> "p", "fs.gs.block.size" -> "1",
      s"fs.azure.account.key.$host" -> "s", s"fs.azure.account.auth.type.$host" -> "SharedKey",
      "fs.azure.account.oauth2.client.secret" -> "t", "fs.azure.write.request.size" -> "1")
    val google = HadoopSettings.of(settings, Seq("gs://one/x", ""))
    assert(
      google.plain ==
        Map("fs.gs.auth.type" -> "UNAUTHENTICATED", "google.cloud.auth.service.account.json.keyfile" -> "/k.json"))
    assert(google.secret == Map("fs.gs.auth.service.account.private.key" -> "p"))
    val azure = HadoopSettings.of(settings, Seq("/x", s"abfss://c@$host/x"))
    assert(azure.plain == Map(s"fs.azure.account.auth.type.$host" -> "SharedKey"))
    assert(
      azure.secret == Map(s"fs.azure.account.key.$host" -> "s", "fs.azure.account.oauth2.client.secret" -> "t"))
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
      assert(HadoopSettings.of(settings, places).secret == Map("fs.s3a.secret.key" -> "own",
        "fs.s3a.access.key" -> "k"))
    } finally LocalFolder.deleteAll(folder)
  }
}
