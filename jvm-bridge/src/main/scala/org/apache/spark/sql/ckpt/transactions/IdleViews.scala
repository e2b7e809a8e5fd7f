package org.apache.spark.sql.ckpt.transactions

import java.util.{ArrayList, Collections, LinkedHashMap, List => JavaList}

/** Views of databases that no transaction uses now, for the next one of their store. Of more than `most`, the least
  * recently used are closed. Thread-safe; views are closed without the lock.
  */
private[ckpt] final class IdleViews[V](most: Int, pathOf: V => String, closeView: V => Unit) {
  private val idle = new LinkedHashMap[V, String](16, 0.75f, true)
  private var isClosed = false

  /** Takes a view of `path`, which is then no longer idle. */
  def take(path: String): Option[V] = {
    val taken = remove(1, _ == path)
    if (taken.isEmpty) None else Some(taken.get(0))
  }

  def have(path: String): Boolean = idle.synchronized(idle.containsValue(path))

  /** Takes a view, and closes it unless it may be kept. `keep` is asked under the lock, and must not block. Whoever makes
    * its answer another one calls `forget` after that, so that no view stays that nobody forgets.
    */
  def giveBack(view: V, keep: V => Boolean): Unit = {
    val surplus = idle.synchronized {
      if (isClosed || !keep(view)) {
        Collections.singletonList(view)
      } else {
        idle.put(view, pathOf(view))
        remove(idle.size - most, _ => true)
      }
    }
    surplus.forEach(closeView(_))
  }

  /** Closes the views of a path. */
  def forget(path: String): Unit = remove(Int.MaxValue, _ == path).forEach(closeView(_))

  /** Closes all views, and from now on those that are given back. */
  def close(): Unit = {
    idle.synchronized { isClosed = true }
    remove(Int.MaxValue, _ => true).forEach(closeView(_))
  }

  /** Takes up to `count` views, of paths that are wanted, the least recently used first. */
  private def remove(count: Int, isWanted: String => Boolean): JavaList[V] = idle.synchronized {
    val removed = new ArrayList[V]
    val entries = idle.entrySet.iterator
    while (removed.size < count && entries.hasNext) {
      val entry = entries.next()
      if (isWanted(entry.getValue)) {
        removed.add(entry.getKey)
        entries.remove()
      }
    }
    removed
  }
}
