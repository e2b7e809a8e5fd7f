package org.apache.spark.sql.ckpt.minor.rules

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.transactions.ServedStore
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}

/** Keeps the number of a query's partitions in a conf of the query's own session, as Spark itself does from 4.1 on.
  *
  * Spark 3.5 and 4.0 have it in `spark.sql.shuffle.partitions` alone, which a foreachBatch function may set.
  */
private[minor] object StatefulPartitions extends ColumnarRule {
  override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
    BatchOperators.in(plan).headOption.foreach { case (_, info) =>
      plan.session.conf.set(ServedStore.StatefulPartitions, info.numPartitions.toString)
    }
    plan
  }
}
