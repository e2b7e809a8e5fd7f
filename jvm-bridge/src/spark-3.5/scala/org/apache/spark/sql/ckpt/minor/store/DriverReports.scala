package org.apache.spark.sql.ckpt.minor.store

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}

/** Nothing: before Spark 4.1, the driver does not ask which snapshots and commits were made. */
private[ckpt] object DriverReports {
  def snapshot(id: StateStoreId, version: Long, conf: StateStoreConf, hadoopConf: Configuration): Unit = ()
  def commit(id: StateStoreId, version: Long, conf: StateStoreConf, hadoopConf: Configuration): Unit = ()
}
