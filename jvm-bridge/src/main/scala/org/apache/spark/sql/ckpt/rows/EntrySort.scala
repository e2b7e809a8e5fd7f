package org.apache.spark.sql.ckpt.rows

import scala.collection.mutable

/** Sorts entries of a `ByteMap` by their keys, four bytes at a time on primitive longs: a word of the key in the high
  * half, the entry number in the low half.
  *
  * Hashed states are nearly sorted after one pass, because the word after the state is the hash. If words are equal,
  * the common part of all keys of the group is skipped at once, however long it is. The time is that of a sort of short
  * keys, plus reading each key once.
  */
private[ckpt] object EntrySort {
  private final val SmallRun = 16

  /** The long that is sorted: the word of `entry`'s key at `depth`, and the entry. */
  def word(map: ByteMap, entry: Int, depth: Int): Long =
    // With the sign bit flipped, signed order is unsigned order.
    ((map.keyWord(entry, depth) ^ 0x80000000).toLong << 32) | (entry & 0xffffffffL)

  /** The entries of `words` in the order of their keys. The words were taken at `depth`, before which keys are equal.
    * Sorts `words` as well.
    */
  def sort(map: ByteMap, words: Array[Long], depth: Int): Array[Int] = {
    sortWords(map, words, depth)
    entries(words)
  }

  def entries(words: Array[Long]): Array[Int] = {
    val found = new Array[Int](words.length)
    var i = 0
    while (i < words.length) {
      found(i) = words(i).toInt
      i += 1
    }
    found
  }

  /** Sorts words, which were taken at `depth`, by the keys of their entries. */
  def sortWords(map: ByteMap, words: Array[Long], depth: Int): Unit = {
    java.util.Arrays.sort(words)
    forGroups(words, 0, words.length) { (from, until) =>
      val shared = words(from) & 0xffffffff00000000L
      sortGroup(map, words, from, until, depth)
      var i = from
      while (i < until) {
        words(i) = shared | (words(i) & 0xffffffffL)
        i += 1
      }
    }
  }

  /** Sorts entries whose keys are equal in the word at `depth` and before it. The high halves are free for use. */
  private def sortGroup(map: ByteMap, words: Array[Long], start: Int, end: Int, depth: Int): Unit = {
    val groups = mutable.Stack((start, end, depth)) // no recursion: keys may share any number of words
    while (groups.nonEmpty) {
      val (from, until, known) = groups.pop()
      if (until - from <= SmallRun) {
        insertionSort(map, words, from, until)
      } else {
        val common = commonDepth(map, words, from, until, known)
        var i = from
        while (i < until) {
          words(i) = word(map, words(i).toInt, common)
          i += 1
        }
        java.util.Arrays.sort(words, from, until)
        forGroups(words, from, until) { (first, last) =>
          val longer = endingFirst(map, words, first, last, common + 4)
          if (last - longer > 1) groups.push((longer, last, common + 4))
        }
      }
    }
  }

  /** Moves the keys that end before `depth` to the front of a group, shorter ones first. Returns where the others
    * begin. If two keys have equal words and one ends there, it is a prefix of the other.
    */
  private def endingFirst(map: ByteMap, words: Array[Long], from: Int, until: Int, depth: Int): Int = {
    var longer = from
    var i = from
    while (i < until) {
      if (map.keyLength(words(i).toInt) < depth) {
        val ending = words(i)
        words(i) = words(longer)
        words(longer) = ending
        longer += 1
      }
      i += 1
    }
    insertionSort(map, words, from, longer)
    longer
  }

  /** The depth up to which all keys of a group are equal; they are equal before `depth`. */
  private def commonDepth(map: ByteMap, words: Array[Long], from: Int, until: Int, depth: Int): Int = {
    val first = words(from).toInt
    var common = Int.MaxValue
    var i = from + 1
    while (i < until && common > 0) {
      common = math.min(common, map.commonBytes(first, words(i).toInt, depth))
      i += 1
    }
    depth + common
  }

  /** Calls `each` for the ranges of more than one word whose high halves are equal. */
  private def forGroups(words: Array[Long], from: Int, until: Int)(each: (Int, Int) => Unit): Unit = {
    var start = from
    while (start < until) {
      var end = start + 1
      while (end < until && (words(end) >> 32) == (words(start) >> 32)) end += 1
      if (end - start > 1) each(start, end)
      start = end
    }
  }

  private def insertionSort(map: ByteMap, words: Array[Long], from: Int, until: Int): Unit = {
    var i = from + 1
    while (i < until) {
      val word = words(i)
      var j = i - 1
      while (j >= from && map.compareKeys(words(j).toInt, word.toInt) > 0) {
        words(j + 1) = words(j)
        j -= 1
      }
      words(j + 1) = word
      i += 1
    }
  }
}
