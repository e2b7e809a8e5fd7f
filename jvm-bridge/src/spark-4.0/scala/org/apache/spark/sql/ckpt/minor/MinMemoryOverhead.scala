package org.apache.spark.sql.ckpt.minor

import org.apache.spark.SparkConf
import org.apache.spark.internal.config.EXECUTOR_MIN_MEMORY_OVERHEAD

private[ckpt] object MinMemoryOverhead {

  /** The least memory, in MiB, that an executor has outside its heap. */
  def of(conf: SparkConf): Long = conf.get(EXECUTOR_MIN_MEMORY_OVERHEAD)
}
