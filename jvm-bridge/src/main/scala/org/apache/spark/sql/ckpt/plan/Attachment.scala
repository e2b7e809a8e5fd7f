package org.apache.spark.sql.ckpt.plan

import java.lang.reflect.Field
import java.util.{Collections, WeakHashMap}

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.ckpt.minor.ClassicSession

/** Gives the extensions to a session that runs already.
  *
  * Spark reads extensions when it makes a session. What it has made of them is in fields that never change: the rules of
  * the analyzer, and the columnar rules. Both get ours here. Functions go into the session's registry. Sessions that are
  * made of this one later, as for each streaming query, are made with its extensions.
  */
private[ckpt] object Attachment {
  private val changed = Collections.newSetFromMap(new WeakHashMap[SparkSessionExtensions, java.lang.Boolean])

  def isDone(session: ClassicSession): Boolean =
    session.sessionState.analyzer.extendedCheckRules.exists(_.isInstanceOf[FollowQueries])

  /** All or nothing: whatever can fail comes before the first change. */
  def attach(session: ClassicSession): Unit = synchronized {
    if (!isDone(session)) {
      val state = session.sessionState
      val own = extend(new SparkSessionExtensions)
      val additions = Seq(
        new Addition(state.analyzer, "postHocResolutionRules", own.buildPostHocResolutionRules(session)),
        new Addition(state.analyzer, "extendedCheckRules", own.buildCheckRules(session)),
        new Addition(state, "columnarRules", own.buildColumnarRules(session)))
      own.registerFunctions(state.functionRegistry)
      if (changed.add(session.extensions)) extend(session.extensions)
      additions.foreach(_.carryOut())
    }
  }

  /** Runs a task for each core, and fails unless all executors that run one have this jar. */
  def checkExecutors(session: ClassicSession): Unit = {
    val context = session.sparkContext
    val tasks = math.max(1, context.defaultParallelism)
    context.parallelize(1 to tasks, tasks).map(number => new Probe(number).number).count()
  }

  private def extend(extensions: SparkSessionExtensions): SparkSessionExtensions = {
    new Extensions().apply(extensions)
    extensions
  }

  /** Rules that are added to those in a field of an object of Spark's. */
  private final class Addition(holder: AnyRef, name: String, rules: Iterable[Any]) {
    private val field: Field = holder.getClass.getDeclaredField(name)
    field.setAccessible(true)
    private val all: AnyRef = field.get(holder).asInstanceOf[Seq[Any]] ++ rules

    def carryOut(): Unit = field.set(holder, all)
  }
}

/** A class of this jar that an executor must have to run the task. */
private[plan] final class Probe(val number: Int) extends Serializable
