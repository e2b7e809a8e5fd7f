package org.apache.spark.sql.ckpt.transactions

import java.util.concurrent.{ConcurrentHashMap, ExecutorService, Executors}

import scala.util.control.NonFatal

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.RpcEndpointRef
import org.apache.spark.sql.ckpt.{CkptErrors, CkptException}
import org.apache.spark.sql.ckpt.fence.PackLedger
import org.apache.spark.sql.ckpt.server.StateServer
import org.apache.spark.sql.ckpt.settings.Json
import org.apache.spark.util.RpcUtils

/** On an executor: tells the driver of packs that become durable after their commits were answered: see `PackLedger`. */
private[ckpt] final class PackReports extends Logging {
  private val followed = new ConcurrentHashMap[String, java.lang.Boolean]
  private val waiting: ExecutorService = Executors.newCachedThreadPool { work =>
    val thread = new Thread(work, "ckpt-packs")
    thread.setDaemon(true)
    thread
  }
  private var driver: RpcEndpointRef = _

  /** Announces a pack, unless that was done: on return the driver knows that the batch must wait for it. */
  def follow(pack: String, server: StateServer): Unit = followed.computeIfAbsent(
    pack,
    _ => {
      tell(PackLedger.Begun, pack, SparkEnv.get.executorId)
      waiting.execute(() => report(pack, server))
      true
    })

  private def report(pack: String, server: StateServer): Unit =
    try {
      val failure =
        try {
          server.call("await_pack", Json.obj().put("pack", pack))
          None
        } catch {
          case problem: CkptException => Some(problem.getMessage)
          case NonFatal(problem) => Some(problem.toString)
        }
      failure match {
        case None => tell(PackLedger.Durable, pack)
        case Some(why) => tell(PackLedger.Failed, pack, why)
      }
    } catch {
      // The driver will hear of the loss of this executor.
      case NonFatal(problem) => logWarning(s"the driver could not be told of pack $pack", problem)
    } finally followed.remove(pack)

  private def tell(message: String*): Unit = findDriver().askSync[Boolean](message.toList)

  private def findDriver(): RpcEndpointRef = synchronized {
    if (driver == null) {
      val env = SparkEnv.get
      driver =
        try RpcUtils.makeDriverRef(PackLedger.Endpoint, env.conf, env.rpcEnv)
        catch {
          case NonFatal(problem) => throw CkptErrors.lifecycle(
              "durability=batch needs a driver whose session has the extensions of the jar: call " +
                "pyspark_ckpt.configure(builder) before the session is made.",
              problem)
        }
    }
    driver
  }

  def close(): Unit = waiting.shutdown()
}
