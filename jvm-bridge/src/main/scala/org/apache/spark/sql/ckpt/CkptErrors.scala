package org.apache.spark.sql.ckpt

import org.apache.spark.{QueryContext, SparkException}

/** An error of the engine, named as in `pyspark_ckpt`'s error tree. */
class CkptException(
    val kind: String,
    private[ckpt] val said: String,
    val hint: String,
    val retryable: Boolean,
    cause: Throwable,
    condition: Option[String] = None,
    parameters: Map[String, String] = Map.empty)
  extends SparkException(
    CkptErrors.text(kind, said, hint, condition), cause, condition, parameters, Array.empty[QueryContext], None) {

  /** Whether what was asked for is not there: it was never made, was retired, or has another id. */
  private[ckpt] def isMissing: Boolean =
    kind == "NotFoundError" || kind == "InvalidInputError" && said.contains(" does not exist")

  /** The same error under one of Spark's own conditions, of which Spark's callers know what to do. */
  private[ckpt] def under(condition: String, parameters: Map[String, String]): CkptException =
    new CkptException(kind, said, hint, retryable, this, Some(condition), parameters)
}

/** The state server ended or could not be reached; the task fails and its retry starts another one. */
class StateServerLostException(message: String, cause: Throwable)
  extends CkptException("StorageError", message, "the next attempt of the task starts a new state server", true, cause)

private[ckpt] object CkptErrors {

  def text(kind: String, message: String, hint: String, condition: Option[String] = None): String = {
    val spark = condition.fold("")(name => s"[$name] ")
    if (hint == null || hint.isEmpty) s"$spark[$kind] $message" else s"$spark[$kind] ${message.stripSuffix(".")}. $hint"
  }

  def invalidInput(message: String, hint: String): CkptException =
    new CkptException("InvalidInputError", message, hint, false, null)

  /** What a version that is not there is to Spark. */
  def missing(what: String, failure: CkptException): CkptException = {
    val said = new CkptException(failure.kind, s"$what does not exist: ${failure.said}", failure.hint, false, failure)
    said.under("CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE", Map("fileToRead" -> what))
  }

  def lifecycle(message: String, cause: Throwable = null): CkptException =
    new CkptException("LifecycleError", message, "", false, cause)

  def unsupported(operation: String, why: String): CkptException =
    new CkptException("InvalidInputError", s"the ckpt state store cannot do $operation: $why", "", false, null)
}
