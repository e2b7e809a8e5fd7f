package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming.runtime

private[minor] trait ErrorNotifierName {
  type ErrorNotifier = runtime.ErrorNotifier
}
