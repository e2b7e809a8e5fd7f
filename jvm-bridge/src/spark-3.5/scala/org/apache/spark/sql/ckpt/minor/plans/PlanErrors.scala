package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.AnalysisException

private[ckpt] object PlanErrors {

  /** As Spark refuses a plan. */
  def unsupported(text: String): AnalysisException = new AnalysisException(text)
}
