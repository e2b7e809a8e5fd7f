package org.apache.spark.sql.ckpt

/** Sorts entries of a `ByteMap` by their keys, four bytes at a time on primitive longs: a word of the key in the high
  * half, the entry number in the low one.
  *
  * Hashed states are nearly done after one pass, for the word behind the state is the hash; states in key order descend
  * only where words are equal.
  */
private[ckpt] object EntrySort {
  private final val SmallRun = 16

  /** The word of `entry`'s key at `depth`, and the entry: what is sorted. */
  def word(map: ByteMap, entry: Int, depth: Int): Long =
    // Flipping the sign bit makes signed order the unsigned one.
    ((map.keyWord(entry, depth) ^ 0x80000000).toLong << 32) | (entry & 0xffffffffL)

  /** The entries of `words`, which were taken at `depth` of keys that are equal before it, in the order of their keys.
    * Overwrites `words`.
    */
  def sort(map: ByteMap, words: Array[Long], depth: Int): Array[Int] = {
    val entries = new Array[Int](words.length)
    sort(map, entries, 0, words, depth)
    entries
  }

  private def sort(map: ByteMap, entries: Array[Int], from: Int, words: Array[Long], depth: Int): Unit = {
    java.util.Arrays.sort(words)
    var i = 0
    while (i < words.length) {
      entries(from + i) = words(i).toInt
      i += 1
    }
    var start = 0
    while (start < words.length) {
      var end = start + 1
      while (end < words.length && (words(end) >> 32) == (words(start) >> 32)) end += 1
      if (end - start > 1) sortEqual(map, entries, from + start, from + end, depth + 4)
      start = end
    }
  }

  /** Sorts entries whose keys are equal before `depth`. */
  private def sortEqual(map: ByteMap, entries: Array[Int], from: Int, until: Int, depth: Int): Unit =
    // Past the longest key only the lengths differ: a few keys, each a prefix of the next.
    if (until - from <= SmallRun || depth >= longest(map, entries, from, until)) {
      insertionSort(map, entries, from, until)
    } else {
      sort(map, entries, from, Array.tabulate(until - from)(i => word(map, entries(from + i), depth)), depth)
    }

  private def longest(map: ByteMap, entries: Array[Int], from: Int, until: Int): Int = {
    var length = 0
    var i = from
    while (i < until) {
      length = math.max(length, map.keyLength(entries(i)))
      i += 1
    }
    length
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
