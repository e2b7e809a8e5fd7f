package org.apache.spark.sql.ckpt.minor.rules

import org.apache.spark.sql.SparkSessionExtensions

/** None: Spark itself keeps the number of a query's partitions, and records the query's operators in its checkpoint. */
private[ckpt] object MinorRules {
  def addTo(extensions: SparkSessionExtensions): Unit = ()
}
