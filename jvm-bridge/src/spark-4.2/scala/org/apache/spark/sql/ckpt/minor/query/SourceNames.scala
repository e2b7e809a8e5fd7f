package org.apache.spark.sql.ckpt.minor.query

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.HasStreamingSourceIdentifyingName

private[ckpt] object SourceNames {

  /** The name that the user has given to a source; None if it has none, or if the node is no source. */
  def of(leaf: LogicalPlan): Option[String] = leaf match {
    case source: HasStreamingSourceIdentifyingName => source.sourceIdentifyingName.toUserProvided.map(_.name)
    case _ => None
  }
}
