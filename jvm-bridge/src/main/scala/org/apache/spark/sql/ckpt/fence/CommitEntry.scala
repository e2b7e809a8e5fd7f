package org.apache.spark.sql.ckpt.fence

import java.io.ByteArrayOutputStream
import java.nio.charset.StandardCharsets.UTF_8

import scala.util.control.NonFatal

import org.apache.spark.sql.ckpt.minor.CancellableFSDataOutputStream

/** A new entry of the commit log. It appears only when all packs that it names are durable: see `PackLedger`. */
private[ckpt] final class CommitEntry(output: CancellableFSDataOutputStream)
  extends CancellableFSDataOutputStream(output) {
  private val content = new ByteArrayOutputStream
  private var closed = false

  override def write(byte: Int): Unit = {
    content.write(byte)
    output.write(byte)
  }

  override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
    content.write(bytes, offset, length)
    output.write(bytes, offset, length)
  }

  override def close(): Unit = if (!closed) {
    closed = true
    try PackLedger.await(new String(content.toByteArray, UTF_8))
    catch {
      case failure: Throwable =>
        try output.cancel()
        catch { case NonFatal(other) => failure.addSuppressed(other) }
        throw failure
    }
    output.close()
  }

  override def cancel(): Unit = {
    closed = true
    output.cancel()
  }
}
