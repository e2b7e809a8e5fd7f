package org.apache.spark.sql.ckpt.minor.rules

import org.apache.spark.sql.SparkSessionExtensions

/** Spark itself records the operators of a query in its checkpoint. */
private[ckpt] object MinorRules {
  def addTo(extensions: SparkSessionExtensions): Unit = extensions.injectColumnar(_ => StatefulPartitions)
}
