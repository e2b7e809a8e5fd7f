package org.apache.spark.sql.ckpt.server

import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.SECONDS

import org.scalatest.funsuite.AnyFunSuite

class CancellableTaskSuite extends AnyFunSuite {
  test("whoever cancels a task waits for work that is being done") {
    val (begun, mayEnd) = (new CountDownLatch(1), new CountDownLatch(1))
    @volatile var done = false
    val task = new CancellableTask(() => {
      begun.countDown()
      mayEnd.await(60, SECONDS)
      done = true
    })
    val worker = new Thread(task)
    worker.start()
    assert(begun.await(60, SECONDS))

    @volatile var doneWhenSettled = false
    val settler = new Thread(() => {
      task.cancelOrAwait()
      doneWhenSettled = done
    })
    settler.start()
    while (settler.getState != Thread.State.BLOCKED) Thread.onSpinWait()
    mayEnd.countDown()
    settler.join(60000)
    worker.join(60000)
    assert(doneWhenSettled)
  }

  test("work that has not begun when its task is cancelled is never done") {
    var done = false
    val task = new CancellableTask(() => done = true)
    task.cancelOrAwait()
    task.run()
    assert(!done)
  }
}
