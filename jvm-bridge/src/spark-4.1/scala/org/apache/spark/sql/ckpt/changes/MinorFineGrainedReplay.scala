package org.apache.spark.sql.ckpt.changes

import org.apache.spark.sql.execution.streaming.state.SupportsFineGrainedReplay

private[ckpt] trait MinorFineGrainedReplay extends ReplayOperations with SupportsFineGrainedReplay
