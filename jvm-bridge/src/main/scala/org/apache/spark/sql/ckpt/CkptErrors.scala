package org.apache.spark.sql.ckpt

import org.apache.spark.SparkException

/** An error of the engine, named as in `pyspark_ckpt`'s error tree. */
class CkptException(val kind: String, message: String, val hint: String, val retryable: Boolean, cause: Throwable)
  extends SparkException(CkptErrors.text(kind, message, hint), cause)

/** The state server ended or could not be reached; the task fails and its retry starts another one. */
class StateServerLostException(message: String, cause: Throwable)
  extends CkptException("StorageError", message, "the next attempt of the task starts a new state server", true, cause)

private[ckpt] object CkptErrors {

  def text(kind: String, message: String, hint: String): String =
    if (hint == null || hint.isEmpty) s"[$kind] $message" else s"[$kind] ${message.stripSuffix(".")}. $hint"

  def invalidInput(message: String, hint: String): CkptException =
    new CkptException("InvalidInputError", message, hint, false, null)

  def lifecycle(message: String): CkptException =
    new CkptException("LifecycleError", message, "", false, null)

  def unsupported(operation: String, why: String): CkptException =
    new CkptException("InvalidInputError", s"the ckpt state store cannot do $operation: $why", "", false, null)
}
