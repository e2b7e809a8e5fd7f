package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.ckpt.changes.ReplayOperations
import org.apache.spark.sql.execution.streaming.state.SupportsFineGrainedReplay

private[ckpt] trait MinorFineGrainedReplay extends ReplayOperations with SupportsFineGrainedReplay
