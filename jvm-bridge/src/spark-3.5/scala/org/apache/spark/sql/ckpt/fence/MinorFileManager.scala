package org.apache.spark.sql.ckpt.fence

import org.apache.spark.sql.ckpt.minor.CheckpointFileManager

/** A manager of files in front of another one, `files`. Spark closes none. */
private[ckpt] trait MinorFileManager extends CheckpointFileManager {
  protected def files: CheckpointFileManager
}
