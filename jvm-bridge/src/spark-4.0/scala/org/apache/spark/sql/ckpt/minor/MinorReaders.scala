package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.ckpt.ProvidedStore
import org.apache.spark.sql.ckpt.changes.SingleVersions

/** What Spark's reader of state asks of a provider. */
private[ckpt] trait MinorReaders extends SingleVersions { this: ProvidedStore => }
