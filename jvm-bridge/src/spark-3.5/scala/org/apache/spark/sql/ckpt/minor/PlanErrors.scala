package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.AnalysisException

private[ckpt] object PlanErrors {

  /** As Spark refuses a plan. */
  def unsupported(text: String): AnalysisException = new AnalysisException(text)
}
