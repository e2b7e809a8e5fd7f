package org.apache.spark.sql.ckpt.minor

import org.apache.spark.SparkConf
import org.apache.spark.resource.ResourceProfile

private[ckpt] object MinMemoryOverhead {

  /** The least memory, in MiB, that an executor has outside its heap. */
  def of(conf: SparkConf): Long = ResourceProfile.MEMORY_OVERHEAD_MIN_MIB
}
