package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.AnalysisException

private[ckpt] object PlanErrors {

  /** Under Spark's condition for plans that it refuses. */
  def unsupported(text: String): AnalysisException =
    new AnalysisException("_LEGACY_ERROR_TEMP_3102", Map("msg" -> text))
}
