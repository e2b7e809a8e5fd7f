package org.apache.spark.sql.ckpt.minor

private[ckpt] object StoreNames {

  /** The stores that an operator has in each partition. */
  def of(writer: StateStoreWriter): Seq[String] = writer.stateStoreNames
}
