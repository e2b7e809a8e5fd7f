package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.state.SupportsFineGrainedReplay

/** Spark's trait, with what it has from a later release on: nothing. */
private[ckpt] trait MinorFineGrainedReplay extends SupportsFineGrainedReplay
