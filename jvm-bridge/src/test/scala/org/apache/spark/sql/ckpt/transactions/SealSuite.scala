package org.apache.spark.sql.ckpt.transactions

import java.nio.file.Files

import net.jpountz.xxhash.XXHashFactory
import org.scalatest.funsuite.AnyFunSuite

/** Seals of files are those that `state_store/transactions/staged_tables.py` compares the files with. */
class SealSuite extends AnyFunSuite {

  test("the seal of a file is its size and the XXH64 of all of it, however large it is") {
    // The test vectors of https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md and Python's xxhash.
    assert(sealOf(Array.empty[Byte]) == Seal(0, "ef46db3751d8e999"))
    assert(sealOf("abc".getBytes) == Seal(3, "44bc2cf5ad770999"))
    for (size <- Seq(1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5000000)) {
      val content = Array.tabulate(size)(n => (n * 31 + n / 7).toByte)
      val hash = XXHashFactory.safeInstance.hash64.hash(content, 0, size, 0L)
      assert(sealOf(content) == Seal(size, f"$hash%016x"))
    }
  }

  private def sealOf(content: Array[Byte]): Seal = {
    val path = Files.createTempFile("seal", ".sst")
    try Seal.of(Files.write(path, content))
    finally Files.delete(path)
  }
}
