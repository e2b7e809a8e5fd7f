package org.apache.spark.sql.ckpt.server

import java.io.{BufferedInputStream, IOException, InputStream}
import java.nio.charset.StandardCharsets.UTF_8

/** The lines of a stream, each of bounded length: the rest of a longer line is skipped, however long it is. */
private[ckpt] final class BoundedLines(stream: InputStream, mostBytes: Int) {
  private val in = new BufferedInputStream(stream)
  private var inLongLine = false

  /** The last bytes of the present line, after earlier bytes of it. */
  private val window = new Array[Byte](2 * mostBytes)
  private var filled = 0

  /** The next line; null at the end of the stream, or if it is broken. */
  def next(): String =
    try {
      if (inLongLine) skip()
      read()
    } catch { case _: IOException => null }

  /** The end of the line that `next` has truncated, which may begin before the cut; empty if it was complete. */
  def end(): String =
    try {
      if (inLongLine) {
        skip()
        val from = math.max(0, filled - mostBytes)
        new String(window, from, filled - from, UTF_8)
      } else ""
    } catch { case _: IOException => "" }

  private def read(): String = {
    filled = 0
    var byte = in.read()
    val atEnd = byte < 0
    while (byte >= 0 && byte != '\n' && filled < mostBytes) {
      keep(byte)
      byte = in.read()
    }
    inLongLine = byte >= 0 && byte != '\n'
    val line = new String(window, 0, filled, UTF_8)
    if (inLongLine) keep(byte)
    if (atEnd) null
    else if (inLongLine) line + s" ... (the rest of a line of more than $mostBytes bytes is left out)"
    else line.stripSuffix("\r")
  }

  private def skip(): Unit = {
    var byte = in.read()
    while (byte >= 0 && byte != '\n') {
      keep(byte)
      byte = in.read()
    }
    inLongLine = false
  }

  private def keep(byte: Int): Unit = {
    if (filled == window.length) {
      System.arraycopy(window, mostBytes, window, 0, mostBytes)
      filled = mostBytes
    }
    window(filled) = byte.toByte
    filled += 1
  }
}

private[ckpt] object BoundedLines {

  /** The maximum that the state server may write in one line: a message of 8192 characters, each as six of JSON. */
  val MaxBytes: Int = 64 << 10
}
