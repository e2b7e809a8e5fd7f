package org.apache.spark.sql.ckpt.fence

import java.nio.{ByteBuffer, ByteOrder}

/** The XXH3 (128 bits) of a short text, as the state server seals objects with it: see `state_store/json_objects.py`.
  *
  * It follows https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md for 17 to 128 bytes.
  */
private[ckpt] object Xxh3 {
  final val MinBytes = 17
  final val MaxBytes = 128

  private final val Prime1 = 0x9e3779b185ebca87L
  private final val Prime2 = 0xc2b2ae3d27d4eb4fL
  private final val Prime4 = 0x85ebca77c2b2ae63L
  private final val LastFactor = 0x165667919e3779f9L
  private final val Step = 16

  /** The part of the default secret that such texts need. */
  private val secret = reader(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
      "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
      "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364")

  /** The hash as 32 hexadecimal digits. `text` has `MinBytes` to `MaxBytes` bytes. */
  def hex(text: Array[Byte]): String = {
    require(text.length >= MinBytes && text.length <= MaxBytes, s"a text of ${text.length} bytes")
    val input = ByteBuffer.wrap(text).order(ByteOrder.LITTLE_ENDIAN)
    var low = text.length * Prime1
    var high = 0L
    // From the middle to the ends: a step takes 16 bytes from the front and 16 from the back.
    for (step <- (text.length - 1) / (2 * Step) to 0 by -1) {
      val front = step * Step
      val back = text.length - front - Step
      low = (low + mix(input, front, 2 * front)) ^ (input.getLong(back) + input.getLong(back + 8))
      high = (high + mix(input, back, 2 * front + Step)) ^ (input.getLong(front) + input.getLong(front + 8))
    }
    val first = avalanche(low + high)
    val second = -avalanche(low * Prime1 + high * Prime4 + text.length * Prime2)
    f"$second%016x$first%016x"
  }

  private def mix(input: ByteBuffer, at: Int, secretAt: Int): Long = {
    val one = input.getLong(at) ^ secret.getLong(secretAt)
    val other = input.getLong(at + 8) ^ secret.getLong(secretAt + 8)
    (one * other) ^ unsignedHigh(one, other)
  }

  /** The upper 64 bits of the product. */
  private def unsignedHigh(one: Long, other: Long): Long = {
    val (oneHigh, oneLow) = (one >>> 32, one & 0xffffffffL)
    val (otherHigh, otherLow) = (other >>> 32, other & 0xffffffffL)
    val crossed = oneHigh * otherLow + ((oneLow * otherLow) >>> 32)
    oneHigh * otherHigh + (crossed >>> 32) + (((crossed & 0xffffffffL) + oneLow * otherHigh) >>> 32)
  }

  private def avalanche(hash: Long): Long = {
    val mixed = (hash ^ (hash >>> 37)) * LastFactor
    mixed ^ (mixed >>> 32)
  }

  private def reader(hex: String): ByteBuffer =
    ByteBuffer.wrap(hex.grouped(2).map(Integer.parseInt(_, 16).toByte).toArray).order(ByteOrder.LITTLE_ENDIAN)
}
