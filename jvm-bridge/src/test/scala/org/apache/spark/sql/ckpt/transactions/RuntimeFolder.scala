package org.apache.spark.sql.ckpt.transactions

import java.nio.file.{Files, Path}

import org.scalatest.{BeforeAndAfterEach, Suite}

import org.apache.spark.sql.ckpt.server.LocalFolder

/** Gives each test a folder for local files, and no runtime that another test has left. */
trait RuntimeFolder extends BeforeAndAfterEach { this: Suite =>
  protected var folder: Path = _
  protected val python: String = {
    val named = sys.env.getOrElse("PYTHON", "python3")
    if (named.contains("/")) Path.of(named).toAbsolutePath.toString else named
  }

  override def beforeEach(): Unit = {
    SharedRuntime.stop()
    folder = Files.createTempDirectory("runtime")
  }

  override def afterEach(): Unit = {
    SharedRuntime.stop()
    LocalFolder.deleteAll(folder)
  }
}
