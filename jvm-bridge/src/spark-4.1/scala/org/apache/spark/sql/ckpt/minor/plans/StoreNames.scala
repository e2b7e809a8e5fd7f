package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.ckpt.minor.StateStoreWriter

private[ckpt] object StoreNames {

  /** The stores that an operator has in each partition. */
  def of(writer: StateStoreWriter): Seq[String] = writer.stateStoreNames
}
