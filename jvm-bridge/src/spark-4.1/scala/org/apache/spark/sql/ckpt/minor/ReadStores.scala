package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.ckpt.CkptStateStore

/** Spark itself says which store a task has read before it writes. */
private[ckpt] trait ReadStores {
  protected def opened(store: CkptStateStore): CkptStateStore = store
}
