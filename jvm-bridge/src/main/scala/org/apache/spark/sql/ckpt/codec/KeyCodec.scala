package org.apache.spark.sql.ckpt.codec

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.CkptErrors
import org.apache.spark.sql.ckpt.minor.{KeyStateEncoderSpec, NoPrefixKeyStateEncoderSpec, RocksDBKeyStateEncoder}
import org.apache.spark.sql.ckpt.minor.codec.KeyEncoding
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/** Converts the key rows of one state to stored keys and back (layout: docs/stored-format.md).
  *
  * Until the next call, an encoded key is in `buffer`, from 0 to the returned length. Not thread-safe.
  */
private[ckpt] abstract class KeyCodec(val number: Int) {
  var buffer = new Array[Byte](64)

  def encode(key: UnsafeRow): Int
  def encodePrefix(prefix: UnsafeRow): Int

  /** Returns a new row, which the caller may change. Spark's encoders reuse one row for everything that they decode,
    * even for scans that are read in turns.
    */
  def decode(stored: Array[Byte]): UnsafeRow

  def supportsPrefixScan: Boolean
  def supportsRangeScan: Boolean

  /** The first byte string after all keys of this state. */
  val stateEnd: Array[Byte] = KeyCodec.stateBound(number + 1)
  val stateStart: Array[Byte] = KeyCodec.stateBound(number)

  /** Lays out `state · hash · encoded`; returns the length. */
  private[ckpt] final def frameHashed(hash: Int, encoded: Array[Byte]): Int = {
    val length = startHashed(hash, encoded.length)
    System.arraycopy(encoded, 0, buffer, KeyCodec.HashedHead, encoded.length)
    length
  }

  /** Makes room for `state · hash` and `size` bytes after it, which the caller fills in. */
  protected final def startHashed(hash: Int, size: Int): Int = {
    ensure(KeyCodec.HashedHead + size)
    writeState()
    writeInt(KeyCodec.StateBytes, hash)
    KeyCodec.HashedHead + size
  }

  /** Lays out `state · encoded`, the beginning of a key that is kept in order; returns the length. */
  private[ckpt] final def frameOrdered(encoded: Array[Byte]): Int = {
    ensure(KeyCodec.StateBytes + encoded.length + KeyCodec.HashBytes)
    writeState()
    System.arraycopy(encoded, 0, buffer, KeyCodec.StateBytes, encoded.length)
    KeyCodec.StateBytes + encoded.length
  }

  /** Completes a key that is kept in order with its hash; returns the length. */
  private[ckpt] final def closeOrdered(length: Int, hash: Int): Int = {
    writeInt(length, hash)
    length + KeyCodec.HashBytes
  }

  private def ensure(length: Int): Unit =
    if (buffer.length < length) buffer = java.util.Arrays.copyOf(buffer, math.max(length, buffer.length * 2))

  private def writeState(): Unit = {
    buffer(0) = (number >> 8).toByte
    buffer(1) = number.toByte
  }

  private def writeInt(at: Int, value: Int): Unit =
    Platform.putInt(buffer, Platform.BYTE_ARRAY_OFFSET + at, Integer.reverseBytes(value))
}

private[ckpt] object KeyCodec {
  final val StateBytes = 2
  final val HashBytes = 4
  final val HashedHead = StateBytes + HashBytes
  private final val OrderedBit = 0x8000
  private final val FirstKeyed = 0x4000

  def isOrdered(number: Int): Boolean = (number & OrderedBit) != 0

  /** Whether a state is one of a keyed operator, whose rows Python workers read and write. */
  def isKeyed(number: Int): Boolean = (number & ~OrderedBit) >= FirstKeyed

  /** Whether Spark scans such keys in order, so that the hash must not come first. */
  def needsOrder(spec: KeyStateEncoderSpec): Boolean =
    KeyEncoding.orderedColumns(spec).isDefined || KeyEncoding.isOfEventTime(spec)

  def create(name: String, number: Int, spec: KeyStateEncoderSpec, valueSchema: StructType): KeyCodec = {
    val hash = PartitionKey.hash(name, spec)
    def sparkEncoder = KeyEncoding.encoder(spec, valueSchema)
    spec match {
      case NoPrefixKeyStateEncoderSpec(schema) => new WholeRowKeyCodec(number, schema.length, hash)
      case _ if isOrdered(number) => new OrderedKeyCodec(number, sparkEncoder, hash)
      case _ => new PrefixKeyCodec(number, sparkEncoder, hash)
    }
  }

  def stateBound(number: Int): Array[Byte] = Array((number >> 8).toByte, number.toByte)

  /** The first byte string after all that start with `prefix`; null if there is none. */
  def behind(prefix: Array[Byte], length: Int): Array[Byte] = {
    var last = length - 1
    while (last >= 0 && prefix(last) == -1) last -= 1
    if (last < 0) {
      null
    } else {
      val bound = java.util.Arrays.copyOf(prefix, last + 1)
      bound(last) = (bound(last) + 1).toByte
      bound
    }
  }
}

/** `state · hash · the key row's own bytes`: the hot path of aggregation, dedup and (flat)MapGroupsWithState. */
private[ckpt] final class WholeRowKeyCodec(number: Int, columns: Int, hash: UnsafeRow => Int) extends KeyCodec(number) {

  override def supportsPrefixScan: Boolean = false
  override def supportsRangeScan: Boolean = false

  override def encode(key: UnsafeRow): Int = {
    val size = key.getSizeInBytes
    val length = startHashed(hash(key), size)
    Platform.copyMemory(
      key.getBaseObject, key.getBaseOffset, buffer, Platform.BYTE_ARRAY_OFFSET + KeyCodec.HashedHead, size)
    length
  }

  override def encodePrefix(prefix: UnsafeRow): Int =
    throw CkptErrors.unsupported("prefixScan", "the store's key encoder has no prefix columns")

  override def decode(stored: Array[Byte]): UnsafeRow = {
    val own = java.util.Arrays.copyOfRange(stored, KeyCodec.HashedHead, stored.length)
    val row = new UnsafeRow(columns)
    row.pointTo(own, own.length)
    row
  }
}

/** `state · hash of the prefix columns · Spark's own encoding`, so that one prefix scan reads one contiguous range. */
private[ckpt] final class PrefixKeyCodec(number: Int, encoder: RocksDBKeyStateEncoder, hash: UnsafeRow => Int)
  extends KeyCodec(number) {

  override def supportsPrefixScan: Boolean = encoder.supportPrefixKeyScan
  override def supportsRangeScan: Boolean = false

  override def encode(key: UnsafeRow): Int = frameHashed(hash(key), encoder.encodeKey(key))

  override def encodePrefix(prefix: UnsafeRow): Int = frameHashed(hash(prefix), encoder.encodePrefixKey(prefix))

  override def decode(stored: Array[Byte]): UnsafeRow =
    encoder.decodeKey(java.util.Arrays.copyOfRange(stored, KeyCodec.HashedHead, stored.length)).copy()
}

/** `state · Spark's order-preserving encoding · hash`: the hash comes last, so that it does not disturb the order. */
private[ckpt] final class OrderedKeyCodec(number: Int, encoder: RocksDBKeyStateEncoder, hash: UnsafeRow => Int)
  extends KeyCodec(number) {

  override def supportsPrefixScan: Boolean = encoder.supportPrefixKeyScan
  override def supportsRangeScan: Boolean = KeyEncoding.supportsRangeScan(encoder)

  override def encode(key: UnsafeRow): Int = closeOrdered(frameOrdered(encoder.encodeKey(key)), hash(key))

  override def encodePrefix(prefix: UnsafeRow): Int = frameOrdered(encoder.encodePrefixKey(prefix))

  /** A bound of a range scan: the key without its hash, which sorts before every key that starts with it. */
  def encodeBound(key: UnsafeRow): Int = frameOrdered(encoder.encodeKey(key))

  override def decode(stored: Array[Byte]): UnsafeRow = encoder.decodeKey(
    java.util.Arrays.copyOfRange(stored, KeyCodec.StateBytes, stored.length - KeyCodec.HashBytes)).copy()
}
