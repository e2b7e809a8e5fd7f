package org.apache.spark.sql.ckpt.minor.rules

import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.ckpt.CkptStateStoreProvider
import org.apache.spark.sql.ckpt.minor.{
  CheckpointFileManager,
  SessionWindowStateStoreSaveExec,
  StateStoreWriter,
  StatefulOperatorStateInfo
}
import org.apache.spark.sql.ckpt.minor.plans.StoreNames
import org.apache.spark.sql.ckpt.plan.keyed.NamedProgress
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.internal.SQLConf

private[ckpt] object MinorRules {
  def addTo(extensions: SparkSessionExtensions): Unit = {
    extensions.injectColumnar(_ => StatefulPartitions)
    extensions.injectColumnar(_ => OperatorRecords)
  }
}

/** Records the operators of a query in its checkpoint before the first batch, as Spark itself does from 4.0 on.
  *
  * `state/<operator>/_metadata/metadata` has version 1 of Spark's OperatorStateMetadata: the operator's name, its stores
  * and their number of partitions. Readers, savepoints and later releases of Spark need it.
  */
private[minor] object OperatorRecords extends ColumnarRule {
  override def preColumnarTransitions: Rule[SparkPlan] = { plan =>
    lazy val hadoopConf = plan.session.sessionState.newHadoopConf()
    if (CkptStateStoreProvider.isChosen(SQLConf.get)) {
      BatchOperators.in(plan).foreach { case (writer, info) =>
        if (info.storeVersion == 0) record(writer, info, hadoopConf)
      }
    }
    plan
  }

  private def record(writer: StateStoreWriter, info: StatefulOperatorStateInfo, hadoopConf: Configuration): Unit = {
    val path = new Path(info.checkpointLocation, s"${info.operatorId}/_metadata/metadata")
    val files = CheckpointFileManager.create(path, hadoopConf)
    if (!files.exists(path)) {
      files.mkdirs(path.getParent)
      val output = files.createAtomic(path, overwriteIfPossible = false)
      try {
        output.write(content(writer, info).getBytes(UTF_8))
        output.close()
      } catch {
        case failure: Throwable =>
          output.cancel()
          throw failure
      }
    }
  }

  private def content(writer: StateStoreWriter, info: StatefulOperatorStateInfo): String = {
    val record = Json.obj()
    record.putObject("operatorInfo").put("operatorId", info.operatorId)
      .put("operatorName", nameOf(writer))
    val stores = record.putArray("stateStoreInfo")
    StoreNames.of(writer).foreach { name =>
      stores.addObject().put("storeName", name).put("numColsPrefixKey", prefixColumns(writer))
        .put("numPartitions", info.numPartitions)
    }
    s"v1\n$record"
  }

  /** As Spark 4 calls it; Spark 3.5 has no name for session windows. */
  private def nameOf(writer: StateStoreWriter): String = writer match {
    case _: SessionWindowStateStoreSaveExec => "sessionWindowStateStoreSaveExec"
    case named: NamedProgress => named.nameInCheckpoint
    case _ => writer.getProgress().operatorName
  }

  private def prefixColumns(writer: StateStoreWriter): Int = writer match {
    case session: SessionWindowStateStoreSaveExec => session.keyWithoutSessionExpressions.length
    case _ => 0
  }
}
