package org.apache.spark.sql.ckpt.plan.keyed

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.minor.plans.RealTime
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}

/** Refuses, with Spark's words, what Spark's list of operators for real-time mode does not have, but for keyed operators.
  *
  * The list compares the names of classes, so a session for keyed operators switches Spark's own check off.
  */
private[ckpt] object RealTimeCheck extends ColumnarRule {
  override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
    if (RealTime.isIn(plan) && Settings.from(plan.conf.getAllConfs).isDefaultStore) {
      RealTime.requireAllowed(plan.transform { case keyed: KeyedExec => keyed.child })
    }
    plan
  }
}
