package org.apache.spark.sql.ckpt

/** Sorts entries of a `ByteMap` by their keys, four bytes at a time on primitive longs.
  *
  * Hashed states are nearly done after one pass, for the first word is the state and half of the hash; states in key order
  * descend only where words are equal.
  */
private[ckpt] object EntrySort {
  private final val SmallRun = 16

  def sort(map: ByteMap, entries: Array[Int]): Unit = sort(map, entries, 0, entries.length, 0)

  private def sort(map: ByteMap, entries: Array[Int], from: Int, until: Int, depth: Int): Unit = {
    if (until - from <= SmallRun) {
      insertionSort(map, entries, from, until)
    } else {
      val words = new Array[Long](until - from)
      var deepest = 0
      var i = from
      while (i < until) {
        deepest = math.max(deepest, map.keyLength(entries(i)))
        // Flipping the sign bit makes signed order the unsigned one; the entry number rides in the low half.
        words(i - from) = ((map.keyWord(entries(i), depth) ^ 0x80000000).toLong << 32) | (entries(i) & 0xffffffffL)
        i += 1
      }
      java.util.Arrays.sort(words)
      i = from
      while (i < until) {
        entries(i) = words(i - from).toInt
        i += 1
      }
      sortRuns(map, entries, from, words, depth, deepest)
    }
  }

  private def sortRuns(
      map: ByteMap,
      entries: Array[Int],
      from: Int,
      words: Array[Long],
      depth: Int,
      deepest: Int): Unit = {
    var start = 0
    while (start < words.length) {
      var end = start + 1
      while (end < words.length && (words(end) >> 32) == (words(start) >> 32)) end += 1
      if (end - start > 1) {
        // Past the longest key only the lengths differ: a few keys, each a prefix of the next.
        if (depth + 4 >= deepest) insertionSort(map, entries, from + start, from + end)
        else sort(map, entries, from + start, from + end, depth + 4)
      }
      start = end
    }
  }

  private def insertionSort(map: ByteMap, entries: Array[Int], from: Int, until: Int): Unit = {
    var i = from + 1
    while (i < until) {
      val entry = entries(i)
      var j = i - 1
      while (j >= from && map.compareKeys(entries(j), entry) > 0) {
        entries(j + 1) = entries(j)
        j -= 1
      }
      entries(j + 1) = entry
      i += 1
    }
  }
}
