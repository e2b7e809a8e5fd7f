package org.apache.spark.sql.ckpt.changes

import org.apache.spark.sql.ckpt.store.ProvidedStore

/** What Spark's reader of state asks of a provider. */
private[ckpt] trait MinorReaders extends SingleVersions { this: ProvidedStore => }
