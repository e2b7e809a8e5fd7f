package org.apache.spark.sql.ckpt

import org.scalatest.funsuite.AnyFunSuite

class RecentScansSuite extends AnyFunSuite {
  private def prefix(number: Int): Array[Byte] = Array[Byte](0, 1, 0, 0, 0, number.toByte, 5)
  private def key(number: Int, last: Int): Array[Byte] = prefix(number) :+ last.toByte

  /** Rows as a database would have them. */
  private final class Rows(keys: Seq[Array[Byte]]) extends Cursor {
    private var left = keys
    override def valid: Boolean = left.nonEmpty
    override def key: Array[Byte] = left.head
    override def deleted: Boolean = false
    override def wasThere: Boolean = true
    override def valueBase: Array[Byte] = left.head
    override def valueFrom: Int = 0
    override def valueLength: Int = left.head.length
    override def advance(): Unit = left = left.tail
    override def close(): Unit = left = Nil
  }

  private def drain(cursor: Cursor): Seq[Seq[Byte]] =
    Iterator.continually(cursor).takeWhile(_.valid).map { at =>
      val key = at.key.toSeq
      at.advance()
      key
    }.toSeq

  private def has(scans: RecentScans, wanted: Array[Byte]): Option[Boolean] =
    Option(scans.around(wanted, wanted.length)).map(_.has(wanted, wanted.length))

  test("shows again what a scan has read to its end, and knows which keys are not there") {
    val scans = new RecentScans
    val keys = Seq(key(1, 1), key(1, 3))
    assert(drain(scans.recording(prefix(1), new Rows(keys))) == keys.map(_.toSeq))
    assert(drain(scans.of(prefix(1)).cursor) == keys.map(_.toSeq))
    assert(has(scans, key(1, 3)).contains(true) && has(scans, key(1, 2)).contains(false))
    assert(scans.of(prefix(2)) == null && has(scans, key(2, 1)).isEmpty)
  }

  test("a prefix without rows is known, too") {
    val scans = new RecentScans
    drain(scans.recording(prefix(1), new Rows(Nil)))
    assert(has(scans, key(1, 1)).contains(false))
  }

  test("says nothing of a scan that was not read to its end") {
    val scans = new RecentScans
    val cursor = scans.recording(prefix(1), new Rows(Seq(key(1, 1), key(1, 2))))
    cursor.advance()
    cursor.close()
    assert(scans.of(prefix(1)) == null && has(scans, key(1, 1)).isEmpty)
  }

  test("keeps no scan of many or of large rows, and passes them on whole") {
    val scans = new RecentScans
    val many = (0 until 100).map(key(1, _))
    assert(drain(scans.recording(prefix(1), new Rows(many))).length == 100)
    val large = Seq(prefix(2) ++ new Array[Byte](1 << 20))
    assert(drain(scans.recording(prefix(2), new Rows(large))).length == 1)
    assert(scans.of(prefix(1)) == null && scans.of(prefix(2)) == null)
  }

  test("a later prefix takes the place of an earlier one and is never mistaken for it") {
    val scans = new RecentScans
    (0 until 5000).foreach { number =>
      val head = java.nio.ByteBuffer.allocate(6).putShort(1).putInt(number).array
      drain(scans.recording(head, new Rows(Seq(head :+ 1.toByte))))
      assert(has(scans, head :+ 1.toByte).contains(true) && has(scans, head :+ 2.toByte).contains(false))
    }
    val first = java.nio.ByteBuffer.allocate(6).putShort(1).putInt(0).array
    assert(scans.of(first) == null)
  }
}
