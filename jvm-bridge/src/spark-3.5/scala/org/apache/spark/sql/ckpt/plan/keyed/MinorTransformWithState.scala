package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.execution.SparkPlan

private[ckpt] object MinorTransformWithState {

  /** None: Spark checks the store of `transformWithState` from 4.2 on. */
  val unchecked: PartialFunction[SparkPlan, SparkPlan] = PartialFunction.empty
}
