package org.apache.spark.sql.ckpt.minor.codec

import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors

/** Errors of a store under Spark's own conditions. */
private[ckpt] object StoreErrors {
  def outOfOrder(message: String): Throwable = StateStoreErrors.stateStoreOperationOutOfOrder(message)
  def unexpectedVersion(version: Long): Throwable = QueryExecutionErrors.unexpectedStateStoreVersion(version)
  def unsupported(operation: String, why: String): Throwable =
    StateStoreErrors.unsupportedOperationException(operation, why)
  def invalidFamily(operation: String, name: String): Throwable =
    StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
  def reservedFamily(name: String): Throwable = StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
  def missingFamily(operation: String, name: String): Throwable =
    StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name)
}
