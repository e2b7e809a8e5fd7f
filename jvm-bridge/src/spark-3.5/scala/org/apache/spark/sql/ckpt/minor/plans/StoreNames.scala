package org.apache.spark.sql.ckpt.minor.plans

import org.apache.spark.sql.ckpt.minor.StateStoreWriter
import org.apache.spark.sql.execution.streaming.StreamingSymmetricHashJoinExec
import org.apache.spark.sql.execution.streaming.StreamingSymmetricHashJoinHelper.{LeftSide, RightSide}
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, SymmetricHashJoinStateManager}

private[ckpt] object StoreNames {

  /** The stores that an operator has in each partition. */
  def of(writer: StateStoreWriter): Seq[String] = writer match {
    case _: StreamingSymmetricHashJoinExec => SymmetricHashJoinStateManager.allStateStoreNames(LeftSide, RightSide)
    case _ => Seq(StateStoreId.DEFAULT_STORE_NAME)
  }
}
