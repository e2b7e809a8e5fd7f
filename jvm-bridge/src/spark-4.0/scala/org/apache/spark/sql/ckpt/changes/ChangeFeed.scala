package org.apache.spark.sql.ckpt.changes

import java.util.Arrays

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.rocksdb.{Options => RocksOptions}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.ckpt.codec.{Family, FamilySpec}
import org.apache.spark.sql.ckpt.rows.{Cursor, MergedCursor}
import org.apache.spark.sql.ckpt.server.StateServer
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.sql.ckpt.store.ProvidedStore
import org.apache.spark.sql.ckpt.transactions.Transaction
import org.apache.spark.sql.execution.streaming.state.RecordType
import org.apache.spark.util.NextIterator

/** A delta that the state server has fetched; its files stay until the next one is requested. */
private[ckpt] final class FetchedDelta(answer: JsonNode) {
  val version: Long = answer.get("version").asLong
  val parent: Option[String] = Option(Json.text(answer, "parent"))
  val files: Seq[String] = answer.get("files").elements.asScala.map(_.asText).toSeq
  val states: JsonNode = answer.get("states")
}

/** The deltas of a range of versions, one at a time, from the state server that opened the feed. */
private[ckpt] final class ChangeFeed(server: StateServer, number: Long) {

  def next(): Option[FetchedDelta] =
    Some(server.call("next_changes", request)).filter(_.hasNonNull("version")).map(new FetchedDelta(_))

  def close(): Unit = if (server.alive) server.call("close_changes", request)

  private def request = Json.obj().put("feed", number)
}

/** The changes of a range of versions in one column family, in the form of Spark's change feed.
  *
  * A version has one change for each key that it has written or removed, in key order: the result, not the writes that
  * led to it. A key with several values has one change for each value: `append` for values after those of the previous
  * version. If the previous values are no longer the first ones: `update` for the first value, `append` for all others.
  *
  * Holds the rows of one key, and the local files of one delta.
  */
private[ckpt] final class ChangeReader(
    provider: ProvidedStore, spec: FamilySpec, feed: ChangeFeed, tableOptions: RocksOptions)
  extends NextIterator[ChangeReader.Change] {
  import ChangeReader._

  private var changes: Iterator[Change] = Iterator.empty
  private var open: Option[OpenDelta] = None
  private var family: Option[Family] = None

  override protected def getNext(): Change = {
    while (!changes.hasNext && openNext()) ()
    finished = !changes.hasNext
    if (finished) null else changes.next()
  }

  override protected def close(): Unit =
    try closeDelta()
    finally provider.served.tolerant(s"close of the change feed of ${provider.served.label}")(feed.close())

  private def openNext(): Boolean = {
    closeDelta()
    val next = feed.next()
    next.foreach { delta =>
      // If this version has removed or recreated a family, its tombstones have the number that it had before.
      val before = family
      family = provider.families.numberIn(delta.states, spec).map { number =>
        before.filter(_.number == number).getOrElse(provider.families.numbered(spec, number))
      }
      val opened = new OpenDelta(delta)
      open = Some(opened)
      opened.openTables()
      changes = (before.filterNot(family.contains) ++ family).iterator.flatMap(opened.changes)
    }
    next.isDefined
  }

  private def closeDelta(): Unit = {
    changes = Iterator.empty
    open.foreach(_.close())
    open = None
  }

  private final class OpenDelta(delta: FetchedDelta) {
    private var tables: List[DeltaTable] = Nil
    private var cursors: List[Cursor] = Nil
    private var base: Option[Transaction] = None

    /** Opens the last file first: if two files have a key, the later one counts. */
    def openTables(): Unit = delta.files.foreach(file => tables ::= new DeltaTable(file, tableOptions))

    def changes(family: Family): Iterator[Change] = {
      val sources = tables.map { table =>
        val source = table.cursor(family.number)
        cursors ::= source
        source
      }
      val rows = new MergedCursor(sources.toArray, _ => ())
      new Iterator[Iterator[Change]] {
        override def hasNext: Boolean = rows.valid
        override def next(): Iterator[Change] = {
          val ofKey = changesOfKey(family, rows)
          rows.advance()
          ofKey
        }
      }.flatten
    }

    private def changesOfKey(family: Family, row: Cursor): Iterator[Change] = {
      val key = family.keys.decode(row.key)
      def change(kind: RecordType.Value, value: UnsafeRow): Change = (kind, key, value, delta.version - 1)
      if (row.deleted || family.values.multiple && row.valueLength == 0) {
        Iterator.single(change(RecordType.DELETE_RECORD, null))
      } else if (!family.values.multiple) {
        val value = family.values.decode(row.valueBase, row.valueFrom, row.valueLength)
        Iterator.single(change(RecordType.PUT_RECORD, value))
      } else {
        val (kind, kept) = comparedWithBase(row)
        val values = family.values.decodeAll(row.valueBase, row.valueFrom + kept, row.valueLength - kept)
        values.zipWithIndex.map { case (value, at) => change(if (at == 0) kind else RecordType.MERGE_RECORD, value) }
      }
    }

    /** The kind of the first change of a key with several values, and how many bytes of them are previous values. */
    private def comparedWithBase(row: Cursor): (RecordType.Value, Int) = {
      val before = base.getOrElse(provider.begin(delta.version - 1, delta.parent))
      base = Some(before)
      if (!before.get(row.key, row.key.length)) {
        (RecordType.MERGE_RECORD, 0)
      } else if (before.valueLength < row.valueLength && Arrays.equals(
          before.valueBase, before.valueFrom, before.valueFrom + before.valueLength,
          row.valueBase, row.valueFrom, row.valueFrom + before.valueLength)) {
        (RecordType.MERGE_RECORD, before.valueLength)
      } else {
        (RecordType.PUT_RECORD, 0)
      }
    }

    def close(): Unit = {
      cursors.foreach(_.close())
      tables.foreach(_.close())
      base.foreach(provider.transactions.end)
    }
  }
}

private[ckpt] object ChangeReader {

  /** The kind of change, the key, the value (null: it was removed), and the batch. */
  type Change = (RecordType.Value, UnsafeRow, UnsafeRow, Long)
}
