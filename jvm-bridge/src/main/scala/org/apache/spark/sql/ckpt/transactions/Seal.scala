package org.apache.spark.sql.ckpt.transactions

import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Path, StandardOpenOption}

import net.jpountz.xxhash.XXHashFactory

/** The size of a staged file and the XXH64 of its content, in 16 hex digits, as its writer recorded them.
  *
  * The state server compares the bytes that it uploads with the seal, and each block with RocksDB's own checksum, which
  * was computed from this process's memory: see `state_store/transactions/staged_tables.py`.
  */
private[ckpt] final case class Seal(bytes: Long, xxh64: String)

private[ckpt] object Seal {
  private final val ChunkBytes = 1 << 20
  private final val Seed = 0L

  /** The seal of a file that has just been completed. */
  def of(path: Path): Seal = {
    val digest = XXHashFactory.fastestInstance.newStreamingHash64(Seed)
    val channel = FileChannel.open(path, StandardOpenOption.READ)
    try {
      val size = channel.size
      val chunk = ByteBuffer.allocate(math.max(1, math.min(size, ChunkBytes)).toInt)
      var read = 0L
      while (channel.read(chunk) >= 0) {
        digest.update(chunk.array, 0, chunk.position())
        read += chunk.position()
        chunk.clear()
      }
      Seal(read, f"${digest.getValue}%016x")
    } finally {
      channel.close()
      digest.close()
    }
  }
}
