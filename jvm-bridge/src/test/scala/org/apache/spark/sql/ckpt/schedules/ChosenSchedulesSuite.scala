package org.apache.spark.sql.ckpt.schedules

import org.jetbrains.lincheck.{Lincheck, LincheckAssertionError}
import org.scalatest.exceptions.TestFailedException
import org.scalatest.funsuite.AnyFunSuite

/** Two threads on one object, under schedules that Lincheck chooses: it may stop a thread before each read and write of a
  * field, and tries different orders. A failure shows the order of the steps.
  */
class ChosenSchedulesSuite extends AnyFunSuite {
  private val Schedules = 100

  private def hold(scene: Runnable): Unit =
    try Lincheck.runConcurrentTest(Schedules, scene)
    catch { case wrong: LincheckAssertionError => fail(wrong.getMessage) } // which sbt cannot pass on as it is

  test("a race is found") {
    val found = intercept[TestFailedException](hold(new Scenes.UnguardedCount))
    assert(found.getMessage.contains("a count is lost"))
  }

  test("a store that is closed while it takes memory gives all of it back") {
    hold(new Scenes.MemoryOfAClosedStore)
  }

  test("stores that take memory at the same time stay within the budget, which counts it right") {
    hold(new Scenes.MemoryOfTwoStores)
  }

  test("the rows of a near cache are lent to one transaction at a time") {
    hold(new Scenes.LentRows)
  }

  test("a near cache that is emptied keeps no rows, also if they come back at the same time") {
    hold(new Scenes.EmptiedCache)
  }

  test("what tasks use is closed once, after the last of them has left") {
    hold(new Scenes.LastTask)
  }

  test("background work that is cancelled is done before that, or never") {
    hold(new Scenes.CancelledWork)
  }

  test("a view that comes back while its path goes out of use is closed") {
    hold(new Scenes.ViewOfAForgottenPath)
  }

  test("views that come back while all are closed are closed") {
    hold(new Scenes.ViewsAtTheEnd)
  }
}
