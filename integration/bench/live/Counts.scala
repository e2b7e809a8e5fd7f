package ckpt.bench

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming.{OutputMode, StatefulProcessor, TTLConfig, TimeMode, TimerValues, ValueState}

/** Numbers the rows of each key: Spark's own operator in the JVM, for the same work as the Python ones. */
final class Counts extends StatefulProcessor[String, (String, Long), (String, Long, Long)] {
  @transient private var counted: ValueState[Long] = _

  override def init(mode: OutputMode, time: TimeMode): Unit =
    counted = getHandle.getValueState[Long]("counted", Encoders.scalaLong, TTLConfig.NONE)

  override def handleInputRows(
      key: String, rows: Iterator[(String, Long)], timers: TimerValues): Iterator[(String, Long, Long)] =
    rows.map { case (_, sent) =>
      val number = (if (counted.exists()) counted.get() else 0L) + 1
      counted.update(number)
      (key, number, sent)
    }
}

object Counts {

  /** `rows`: key string, sent bigint. */
  def count(rows: DataFrame): DataFrame =
    rows
      .as[(String, Long)](Encoders.tuple(Encoders.STRING, Encoders.scalaLong))
      .groupByKey((row: (String, Long)) => row._1)(Encoders.STRING)
      .transformWithState(new Counts, TimeMode.None(), OutputMode.Update())(
        Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.scalaLong))
      .toDF("key", "number", "sent")
}
