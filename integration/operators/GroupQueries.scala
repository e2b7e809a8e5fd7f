package pyspark_ckpt.tests

import org.apache.spark.sql.{DataFrame, Encoders, Row}
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

/** Queries with `flatMapGroupsWithState`, which no Python program can write, on a stream of rows (user, number).
  *
  * Called by Python: see scala_groups.py. All encoders are of Spark's own classes, so that no class loader of the
  * driver needs those of this file.
  */
object GroupQueries {
  private val users = Encoders.scalaInt
  private val states = Encoders.tuple(Encoders.scalaLong, Encoders.scalaLong)
  private val outputs =
    Encoders.tuple(Encoders.scalaInt, Encoders.scalaLong, Encoders.scalaLong, Encoders.scalaBoolean)
  private val columns = Seq("user", "rows", "total", "timed_out")

  /** Rows and sums of each user, until twelve minutes of event time have passed without any. */
  def untilSilent(events: DataFrame): DataFrame =
    events.groupByKey((row: Row) => row.getInt(0))(users)
      .flatMapGroupsWithState[(Long, Long), (Int, Long, Long, Boolean)](
        OutputMode.Append,
        GroupStateTimeout.EventTimeTimeout)(add(_, _, _, Some(12 * 60000L)))(states, outputs)
      .toDF(columns: _*)

  /** Rows and sums of each user since the beginning; those of users with a multiple of three rows are forgotten. */
  def untilThree(events: DataFrame): DataFrame =
    events.groupByKey((row: Row) => row.getInt(0))(users)
      .flatMapGroupsWithState[(Long, Long), (Int, Long, Long, Boolean)](
        OutputMode.Update,
        GroupStateTimeout.NoTimeout)(forgetThird)(states, outputs)
      .toDF(columns: _*)

  private def add(
      user: Int,
      rows: Iterator[Row],
      state: GroupState[(Long, Long)],
      silenceMs: Option[Long]): Iterator[(Int, Long, Long, Boolean)] =
    if (state.hasTimedOut) {
      val (count, total) = state.get
      state.remove()
      Iterator((user, count, total, true))
    } else {
      val (count, total) = rows.foldLeft(state.getOption.getOrElse((0L, 0L))) { case ((count, total), row) =>
        (count + 1, total + row.getLong(1))
      }
      state.update((count, total))
      silenceMs.foreach(silence => state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + silence))
      Iterator((user, count, total, false))
    }

  private def forgetThird(
      user: Int,
      rows: Iterator[Row],
      state: GroupState[(Long, Long)]): Iterator[(Int, Long, Long, Boolean)] = {
    val shown = add(user, rows, state, None).toSeq
    if (state.get._1 % 3 == 0) state.remove()
    shown.iterator
  }
}
