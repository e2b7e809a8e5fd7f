package org.apache.spark.sql.ckpt

import java.nio.file.{Files, Path, Paths}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.codec.KeyCodec
import org.apache.spark.sql.ckpt.fence.{Runs, Xxh3}
import org.apache.spark.sql.ckpt.settings.{Json, OptionTable, Settings}

/** The shim and the state server agree on bytes: both are held against the files in tests/golden. */
class GoldenSuite extends AnyFunSuite {

  private def golden(name: String): JsonNode = {
    val above = Iterator.iterate(Paths.get("").toAbsolutePath)(_.getParent).takeWhile(_ != null)
    val folder: Path = above.map(_.resolve("tests/golden")).find(Files.isDirectory(_)).get
    Json.mapper.readTree(folder.resolve(name).toFile)
  }

  private def bytes(hex: String): Array[Byte] = hex.grouped(2).map(Integer.parseInt(_, 16).toByte).toArray
  private def hex(bytes: Array[Byte], length: Int): String = bytes.take(length).map(b => f"$b%02x").mkString

  private final class Framing(number: Int) extends KeyCodec(number) {
    override def encode(key: UnsafeRow): Int = throw new UnsupportedOperationException
    override def encodePrefix(prefix: UnsafeRow): Int = throw new UnsupportedOperationException
    override def decode(stored: Array[Byte]): UnsafeRow = throw new UnsupportedOperationException
    override def supportsPrefixScan: Boolean = false
    override def supportsRangeScan: Boolean = false
  }

  test("lays keys out as the golden file has them") {
    val keys = golden("keys.json").get("keys").elements.asScala.toSeq
    assert(keys.size > 5)
    keys.foreach { entry =>
      val codec = new Framing(entry.get("state").asInt)
      val (hash, user) = (entry.get("hash").asLong.toInt, bytes(entry.get("user_key").asText))
      val length =
        if (entry.get("ordered").asBoolean) codec.closeOrdered(codec.frameOrdered(user), hash)
        else codec.frameHashed(hash, user)
      assert(hex(codec.buffer, length) == entry.get("key").asText)
      assert(KeyCodec.isOrdered(entry.get("state").asInt) == entry.get("ordered").asBoolean)
    }
  }

  test("every key of a state lies between the state's bounds") {
    golden("keys.json").get("keys").elements.asScala.foreach { entry =>
      val key = bytes(entry.get("key").asText)
      val codec = new Framing(entry.get("state").asInt)
      assert(java.util.Arrays.compareUnsigned(codec.stateStart, key) <= 0)
      assert(java.util.Arrays.compareUnsigned(key, codec.stateEnd) < 0)
    }
  }

  test("reads numbers of options, or says what to write, as the golden file has it") {
    val numbers = golden("options.json").get("numbers").elements.asScala.toSeq
    assert(numbers.size > 20)
    numbers.foreach { entry =>
      val wanted =
        if (entry.hasNonNull("problem")) Left(entry.get("problem").asText) else Right(entry.get("value").asLong)
      assert(OptionTable.number(entry.get("type").asText, entry.get("text").asText) == wanted, entry)
    }
  }

  test("keeps values of options, or refuses them, as the golden file has it") {
    val options = golden("options.json").get("options").elements.asScala.toSeq
    assert(options.size > 10)
    options.foreach { entry =>
      val (key, text) = (entry.get("key").asText, entry.get("text").asText)
      def read = Settings.from(Map(Settings.Prefix + key -> text))
      if (entry.hasNonNull("problem")) {
        val refusal = intercept[CkptException](read)
        assert(refusal.said == s"Option ${Settings.Prefix}$key has the value '$text': ${entry.get("problem").asText}.")
        assert(refusal.hint == OptionTable.hint(key))
      } else {
        assert(read == Settings(Map(key -> entry.get("canonical").asText)), entry)
      }
    }
  }

  test("hashes short texts as the golden file has it") {
    val hashes = golden("runs.json").get("hashes").elements.asScala.toSeq
    assert(hashes.size > 5)
    hashes.foreach(entry => assert(Xxh3.hex(entry.get("text").asText.getBytes("UTF-8")) == entry.get("xxh3").asText))
  }

  test("writes the run of a query as the golden file has it") {
    val runs = golden("runs.json").get("runs").elements.asScala.toSeq
    assert(runs.size > 3)
    runs.foreach { entry =>
      val content = Runs.content(entry.get("run_id").asText, entry.get("driver").asText)
      assert(new String(content, "UTF-8") == entry.get("content").asText)
    }
  }
}
