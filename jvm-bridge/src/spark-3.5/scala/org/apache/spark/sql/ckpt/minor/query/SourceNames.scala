package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

private[ckpt] object SourceNames {

  /** Sources have no names before Spark 4.2. */
  def of(leaf: LogicalPlan): Option[String] = None
}
