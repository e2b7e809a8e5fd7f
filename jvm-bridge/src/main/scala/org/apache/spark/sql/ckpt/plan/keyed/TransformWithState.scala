package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.internal.SQLConf

/** Lets `transformWithState` run on this store.
  *
  * Spark refuses any store but its own by the name of the class, although this store has all that the operator needs. Of
  * the rules that a session may add, only columnar ones see a micro-batch's operators with their state. A replacement
  * must not be equal to Spark's operator, or the plan above keeps that one.
  */
private[ckpt] object TransformWithState extends ColumnarRule {
  override def preColumnarTransitions: Rule[SparkPlan] = plan =>
    if (CkptStateStoreProvider.isChosen(SQLConf.get)) plan.transformUp(MinorTransformWithState.unchecked) else plan
}
