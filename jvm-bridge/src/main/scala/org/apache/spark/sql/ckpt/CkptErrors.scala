package org.apache.spark.sql.ckpt

import org.apache.spark.{QueryContext, SparkException}

/** An error of the engine, with the name that it has in `pyspark_ckpt`'s error tree. */
class CkptException(
    val kind: String,
    private[ckpt] val said: String,
    val hint: String,
    val retryable: Boolean,
    cause: Throwable,
    condition: Option[String] = None,
    parameters: Map[String, String] = Map.empty)
  extends SparkException(
    CkptErrors.text(kind, said, hint, condition), cause, condition, parameters, Array.empty[QueryContext]) {

  /** Whether the requested object does not exist: it was never made, was retired, or has another id. */
  private[ckpt] def isMissing: Boolean = kind == "NotFoundError"

  /** The same error under one of Spark's own conditions, which Spark's callers can handle. */
  private[ckpt] def under(condition: String, parameters: Map[String, String]): CkptException =
    new CkptException(kind, said, hint, retryable, this, Some(condition), parameters)
}

/** The state server ended or could not be reached. The task fails, and its retry starts another server. */
class StateServerLostException(message: String, cause: Throwable)
  extends CkptException("ProcessError", message, "The next attempt of the task starts a new state server.", true, cause)

private[ckpt] object CkptErrors {

  def text(kind: String, message: String, hint: String, condition: Option[String] = None): String = {
    val spark = condition.fold("")(name => s"[$name] ")
    if (hint == null || hint.isEmpty) s"$spark[$kind] $message" else s"$spark[$kind] ${message.stripSuffix(".")}. $hint"
  }

  def invalidInput(message: String, hint: String): CkptException =
    new CkptException("InvalidInputError", message, hint, false, null)

  /** Stored bytes that cannot be read. */
  def format(message: String): CkptException = new CkptException("FormatError", message, "", false, null)

  def notFound(message: String): CkptException = new CkptException("NotFoundError", message, "", false, null)

  /** This executor cannot have a state server: the Python is missing, or has another release. */
  def noProcess(message: String, hint: String, cause: Throwable = null): CkptException =
    new CkptException("ProcessError", message, hint, false, cause)

  /** The error that Spark expects for a version that does not exist. */
  def missing(what: String, failure: CkptException): CkptException = {
    val said = new CkptException(failure.kind, s"$what does not exist: ${failure.said}", failure.hint, false, failure)
    said.under("CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE", Map("fileToRead" -> what))
  }

  def lifecycle(message: String, cause: Throwable = null): CkptException =
    new CkptException("LifecycleError", message, "", false, cause)

  def unsupported(operation: String, why: String): CkptException =
    new CkptException("InvalidInputError", s"The ckpt state store does not support $operation: $why.", "", false, null)
}
