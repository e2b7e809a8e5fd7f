package org.apache.spark.sql.ckpt.minor.rules

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.ckpt.minor.{StateStoreWriter, StatefulOperatorStateInfo, StreamExecution}
import org.apache.spark.sql.execution.SparkPlan

private[minor] object BatchOperators {

  /** The stateful operators of a query's batch that is to run. Spark explains plans with the relative path "<unknown>". */
  def in(plan: SparkPlan): Seq[(StateStoreWriter, StatefulOperatorStateInfo)] =
    if (plan.session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY) == null) Nil
    else {
      plan.collect { case writer: StateStoreWriter => writer }
        .flatMap(writer => writer.stateInfo.map(writer -> _))
        .filter { case (_, info) => new Path(info.checkpointLocation).isAbsolute }
    }
}
