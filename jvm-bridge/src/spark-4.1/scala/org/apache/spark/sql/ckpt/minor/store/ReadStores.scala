package org.apache.spark.sql.ckpt.minor.store

/** Spark itself says which store a task has read before it writes. */
private[ckpt] trait ReadStores {
  protected def opened(store: MinorStateStore): MinorStateStore = store
}
