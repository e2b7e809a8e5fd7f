package org.apache.spark.sql.ckpt
package server

import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.SECONDS

import org.scalatest.funsuite.AnyFunSuite

class ErrandSuite extends AnyFunSuite {
  test("whoever settles an errand waits for work that is being done") {
    val (begun, mayEnd) = (new CountDownLatch(1), new CountDownLatch(1))
    @volatile var done = false
    val errand = new Errand(() => {
      begun.countDown()
      mayEnd.await(60, SECONDS)
      done = true
    })
    val worker = new Thread(errand)
    worker.start()
    assert(begun.await(60, SECONDS))

    @volatile var doneWhenSettled = false
    val settler = new Thread(() => {
      errand.settle()
      doneWhenSettled = done
    })
    settler.start()
    while (settler.getState != Thread.State.BLOCKED) Thread.onSpinWait()
    mayEnd.countDown()
    settler.join(60000)
    worker.join(60000)
    assert(doneWhenSettled)
  }

  test("work that has not begun when its errand is settled is never done") {
    var done = false
    val errand = new Errand(() => done = true)
    errand.settle()
    errand.run()
    assert(!done)
  }
}
