package org.apache.spark.sql.ckpt.minor

import org.apache.spark.sql.execution.streaming

private[minor] trait ErrorNotifierName {
  type ErrorNotifier = streaming.ErrorNotifier
}
