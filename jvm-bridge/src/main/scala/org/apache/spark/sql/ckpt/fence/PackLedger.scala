package org.apache.spark.sql.ckpt.fence

import java.util.concurrent.{CompletableFuture, ExecutionException, TimeUnit, TimeoutException}

import scala.collection.mutable

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}
import org.apache.spark.sql.ckpt.CkptException

/** On the driver: which packs are durable that commits of running batches are in (option `durability`).
  *
  * An executor announces a pack before the first task with a commit in it ends, and says later that the pack is durable,
  * or why not. The entry of a batch in the commit log waits for all packs that it names.
  */
private[ckpt] object PackLedger extends Logging {
  final val Endpoint = "ckpt-packs"

  /** Messages are plain lists: Spark may decode them with a class loader that does not have this jar. */
  final val Begun = "begun"
  final val Durable = "durable"
  final val Failed = "failed"

  private final class Pack(val executor: String) {
    val durable = new CompletableFuture[Unit]
  }

  private val Kept = 4096
  private val WarnSeconds = 30L
  private val Named = "-([0-9a-f]{16})\\.[0-9a-f]+\\.[0-9a-f]+\"".r

  private val packs = new mutable.LinkedHashMap[String, Pack]
  private var receivesIn: RpcEnv = _

  /** Receives what executors say, from now on. Call it before a query runs. */
  def start(): Unit = synchronized {
    val env = SparkEnv.get
    if (env != null && (env.rpcEnv ne receivesIn)) {
      env.rpcEnv.setupEndpoint(Endpoint, new Receiver(env.rpcEnv))
      SparkContext.getActive.foreach(_.addSparkListener(new SparkListener {
        override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit =
          lose(removed.executorId, removed.reason)
      }))
      receivesIn = env.rpcEnv
    }
  }

  /** Returns when all packs are durable that an entry of the commit log names and that were announced here. Throws what
    * kept one from it.
    */
  def await(entry: String): Unit = {
    val named = Named.findAllMatchIn(entry).map(_.group(1)).toSet
    val open = synchronized(named.toSeq.flatMap(pack => packs.get(pack).map(pack -> _)))
    open.foreach { case (id, pack) => await(id, pack) }
  }

  private def await(id: String, pack: Pack): Unit =
    try {
      while (!isDone(pack)) {
        logWarning(s"The batch waits for pack $id of executor ${pack.executor}, which is not durable yet.")
      }
    } catch { case failed: ExecutionException => throw failed.getCause }

  private def isDone(pack: Pack): Boolean =
    try {
      pack.durable.get(WarnSeconds, TimeUnit.SECONDS)
      true
    } catch { case _: TimeoutException => false }

  private[ckpt] def begin(id: String, executor: String): Unit = synchronized {
    if (!packs.contains(id)) packs.put(id, new Pack(executor))
    while (packs.size > Kept && packs.head._2.durable.isDone) packs.remove(packs.head._1)
  }

  private[ckpt] def end(id: String, failure: Option[String]): Unit = synchronized {
    packs.get(id).foreach { pack =>
      failure match {
        case None => pack.durable.complete(())
        case Some(why) => pack.durable.completeExceptionally(refusal(id, s"could not be written: $why"))
      }
    }
  }

  private[ckpt] def lose(executor: String, reason: String): Unit = synchronized {
    packs.foreach { case (id, pack) =>
      if (pack.executor == executor && !pack.durable.isDone) {
        val why = s"was not durable when executor $executor was lost ($reason)"
        pack.durable.completeExceptionally(refusal(id, why))
      }
    }
  }

  private def refusal(id: String, why: String): CkptException = new CkptException(
    "StorageError",
    s"The batch is not committed: pack $id, with state that its tasks have committed, $why.",
    "Start the query again: it repeats the batch. With durability=task, the loss of an executor repeats its tasks alone.",
    true, null)

  private final class Receiver(override val rpcEnv: RpcEnv) extends ThreadSafeRpcEndpoint {
    override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
      case Seq(Begun, pack: String, executor: String) =>
        begin(pack, executor)
        context.reply(true)
      case Seq(Durable, pack: String) =>
        end(pack, None)
        context.reply(true)
      case Seq(Failed, pack: String, why: String) =>
        end(pack, Some(why))
        context.reply(true)
    }
  }
}
