package org.apache.spark.sql.ckpt.minor.codec

import org.apache.spark.sql.ckpt.CkptErrors

/** Errors of a store for which Spark 4 has conditions of its own. */
private[ckpt] object StoreErrors {
  def outOfOrder(message: String): Throwable = new IllegalStateException(message)
  def unexpectedVersion(version: Long): Throwable = new IllegalArgumentException(s"Version cannot be $version")
  def unsupported(operation: String, why: String): Throwable = CkptErrors.unsupported(operation, why)
  def invalidFamily(operation: String, name: String): Throwable =
    CkptErrors.unsupported(operation, s"'$name' is not a name of a column family")
  def reservedFamily(name: String): Throwable = invalidFamily("create_col_family", name)
  def missingFamily(operation: String, name: String): Throwable =
    CkptErrors.unsupported(operation, s"there is no column family '$name'")
}
