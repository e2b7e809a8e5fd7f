package org.apache.spark.sql.ckpt.minor.plans

/** A logical node that keeps state. From Spark 4.3 on, such nodes say so. */
private[ckpt] trait StatefulNode
