package org.apache.spark.sql.ckpt.minor

private[minor] trait ErrorNotifierName {
  type ErrorNotifier = org.apache.spark.util.ErrorNotifier
}
