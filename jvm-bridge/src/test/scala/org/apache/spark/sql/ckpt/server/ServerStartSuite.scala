package org.apache.spark.sql.ckpt.server

import java.io.{ByteArrayInputStream, IOException, InputStream, PipedInputStream, PipedOutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.TimeUnit

import scala.concurrent.duration._
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.ckpt.CkptException
import org.apache.spark.sql.ckpt.settings.Settings
import org.apache.spark.sql.ckpt.transactions.{RuntimeFolder, SharedRuntime}

class ServerStartSuite extends AnyFunSuite with RuntimeFolder {
  private def lines(text: String, most: Int): Seq[String] = {
    val found = new BoundedLines(new ByteArrayInputStream(text.getBytes(UTF_8)), most)
    Iterator.continually(found.next()).takeWhile(_ != null).toSeq
  }

  /** As many bytes as one likes, none of them the end of a line. */
  private final class Endless(var left: Long) extends InputStream {
    override def read(): Int = if (left > 0) { left -= 1; 'x' }
    else -1
    override def read(into: Array[Byte], at: Int, length: Int): Int =
      if (left <= 0) -1
      else {
        val count = math.min(length.toLong, left).toInt
        java.util.Arrays.fill(into, at, at + count, 'x'.toByte)
        left -= count
        count
      }
  }

  test("lines are what was written, and of long ones the rest is left out") {
    assert(lines("", 4) == Seq.empty)
    assert(lines("a\n\nbc\r\nlast", 4) == Seq("a", "", "bc", "last"))
    val cut = lines("12345678\n1234\nnext\n", 4)
    assert(cut.map(_.take(4)) == Seq("1234", "1234", "next"))
    assert(cut.head.contains("left out") && !cut(1).contains("left out"))
  }

  test("lines are what was written whatever their lengths are") {
    val random = new Random(7)
    for (_ <- 1 to 200) {
      val written = Seq.fill(random.nextInt(6))(random.alphanumeric.take(random.nextInt(12)).mkString)
      val found = lines(written.map(_ + "\n").mkString, 8)
      assert(found.map(_.take(8)) == written.map(_.take(8)))
    }
  }

  test("the end of a line that was cut is kept, with what was before the cut") {
    def end(text: String) = {
      val found = new BoundedLines(new ByteArrayInputStream(text.getBytes(UTF_8)), 4)
      found.next()
      (found.end(), found.next())
    }
    assert(end("1234\nnext\n") == (("", "next")))
    for (count <- 5 to 20) {
      val text = ('a' to 'z').take(count).mkString
      assert(end(s"$text\nnext\n") == ((text.takeRight(4), "next")))
      assert(end(text) == ((text.takeRight(4), null)))
    }
  }

  test("an endless line takes no memory, and the log goes on after it") {
    val after = new ByteArrayInputStream("\nthe next\n".getBytes(UTF_8))
    val stream = new java.io.SequenceInputStream(new Endless(1L << 29), after)
    val log = new ServerLog(new BoundedLines(stream, 1 << 10), "test")
    log.run()
    assert(log.last.last == "the next")
    assert(log.last.head.length < 600)
  }

  test("lines that are no log lines end no log") {
    val odd =
      Seq("{", "{}", "{\"level\": 3}", "[" * 5000, "{\"a\":" * 5000, "\u0000\uffff", "{\"message\": null}", "null")
    val log = new ServerLog(
      new BoundedLines(new ByteArrayInputStream((odd :+ "the end\n").mkString("\n").getBytes(UTF_8)), 64 << 10), "test")
    log.run()
    assert(log.last.last == "the end")
  }

  test("a stream that breaks ends the log without a word") {
    val broken = new InputStream { override def read(): Int = throw new IOException("Stream closed") }
    new ServerLog(new BoundedLines(broken, 10), "test").run()
  }

  test("the hello is found whatever comes before it") {
    val hello = "{\"port\": 7, \"pid\": 1, \"protocol\": 1, \"version\": \"1\"}"
    val noise =
      Seq("", "{}", "[1]", "{\"port\": 1}", "{\"error\": \"no\"}", "{\"port\": ", "hello", "\u0007", "x" * 5000) ++
        Seq(-200, -20, 0, 20).map(more => "\u0000" * ((64 << 10) + more)) :+ "x" * 1000000
    for (before <- noise; between <- Seq("\n", "")) {
      val greeting = new Greeting(
        new BoundedLines(new ByteArrayInputStream(s"$before$between$hello\n".getBytes(UTF_8)), 64 << 10))
      assert(greeting.await(10.seconds).map(_.get("port").asInt).contains(7), s"after '${before.take(80)}'")
    }
  }

  test("what is not a hello is shown in part when there is none") {
    val text = (1 to 1000).map(number => s"line $number " + "x" * 2000).mkString("\n")
    val greeting = new Greeting(new BoundedLines(new ByteArrayInputStream(text.getBytes(UTF_8)), 64 << 10))
    assert(greeting.await(10.seconds).isEmpty)
    assert(greeting.others.size == 10 && greeting.others.forall(_.length < 600))
    assert(greeting.others.head.startsWith("line 1 "))
  }

  test("a hello that does not come is not waited for for ever") {
    val silent = new PipedInputStream(new PipedOutputStream)
    assert(new Greeting(new BoundedLines(silent, 10)).await(1.second).isEmpty)
  }

  /** A Python that does something first, as a wrapper or a `sitecustomize` does. */
  private def wrapped(before: String): String = {
    val path = folder.resolve("wrapped-python")
    Files.writeString(path, s"#!/bin/sh\n$before\nexec $python \"$$@\"\n")
    Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rwx------"))
    path.toString
  }

  private def server(python: String, seconds: Int = 60): StateServer = {
    val options = Map("python" -> python, "localDir" -> folder.toString, "startTimeout" -> s"${seconds}s")
    SharedRuntime.get(Settings(options)).server()
  }

  private def refusal(python: String, seconds: Int = 60, kind: String = "ProcessError"): String = {
    val failure = intercept[CkptException](server(python, seconds))
    assert(failure.kind == kind)
    failure.getMessage
  }

  test("a server starts though its Python writes to stdout before it") {
    val noise = "echo Activating the environment; echo '{\"port\": 1}'; echo; printf 'no end of line'"
    assert(server(wrapped(noise)).alive)
  }

  test("a server starts though its Python writes much to stdout before it") {
    assert(server(wrapped("seq 100000; head -c 1000000 /dev/zero; echo >&2 and more")).alive)
  }

  /** A Python that loads a `sitecustomize`. */
  private def customized(code: String): String = {
    Files.writeString(folder.resolve("sitecustomize.py"), code)
    wrapped(s"export PYTHONPATH=$folder")
  }

  test("a server starts though what its Python loads first uses the standard streams for itself") {
    val noise = "threading.Thread(target=lambda: [os.write(1, b'\\0\\377' * 40000) for _ in range(99999)], daemon=True)"
    for (code <- Seq(
        "import sys; sys.stdin = sys.stdout = sys.stderr = None",
        "import sys, io; sys.stdout = sys.stderr = io.StringIO(); import os; os.close(2); os.write(1, b'x' * 100000)",
        s"import os, threading; $noise.start()")) {
      assert(server(customized(code)).alive, code)
      SharedRuntime.stop()
    }
  }

  test("a Python whose standard streams are closed or lead elsewhere is named, with what to do") {
    for ((code, words) <- Seq(
        "os.close(0)" -> "stdin",
        "os.close(1)" -> "Leave the stream open",
        "os.dup2(2, 1)" -> "closed or redirected its stdout")) {
      val text = refusal(customized(s"import os; $code"))
      assert(text.contains(words) && text.contains("python") && text.contains("sitecustomize"), text)
    }
  }

  test("a local folder that cannot be written is named") {
    val text = refusal(wrapped("ulimit -f 0"), kind = "StorageError")
    assert(text.contains(s"local folder $folder") && text.contains("localDir"), text)
  }

  test("a wrapper that waits for its Python leaves no process when it is ended") {
    val pids = folder.resolve("pids")
    val waiting = customized(s"import os, time; open('$pids', 'w').write(str(os.getpid())); time.sleep(600)")
    Files.writeString(Path.of(waiting), Files.readString(Path.of(waiting)).replace("exec ", ""))
    assert(refusal(waiting, 3).contains("within 3 s"))
    val python = ProcessHandle.of(Files.readString(pids).trim.toLong)
    python.ifPresent(each => each.onExit.get(10, TimeUnit.SECONDS): Unit)
  }

  test("a Python that never says hello is named, with what it wrote and what to do") {
    val text = refusal(wrapped("echo first words; echo other words >&2; sleep 60"), 3)
    for (part <- Seq("wrapped-python", "within 3 s", "first words", "other words", "startTimeout")) {
      assert(text.contains(part), text)
    }
  }

  test("a Python that ends is named, with its status and what it wrote") {
    val text = refusal(wrapped("echo first words; echo 'cannot execute' >&2; exit 3"))
    for (part <- Seq("wrapped-python", "status 3", "first words", "cannot execute", "ckpt.python")) {
      assert(text.contains(part), text)
    }
  }

  test("a state server of another release is named, with what to do") {
    val refused = "{\"kind\": \"InvalidInputError\", \"message\": \"unknown field\", \"hint\": \"\"}"
    for ((answer, protocol) <- Seq(
        "{\"port\": 1, \"pid\": 1, \"protocol\": 1, \"version\": \"1\"}" -> 1,
        s"{\"error\": $refused}" -> 1,
        s"{\"error\": $refused, \"protocol\": 7}" -> 7)) {
      val text = refusal(wrapped(s"echo '$answer'; sleep 60"))
      assert(text.contains(s"speaks protocol $protocol") && text.contains("Install the same release"), text)
    }
  }

  test("a Python without the package, or a file that is not Python, is named with what to do") {
    val empty = Files.createDirectory(folder.resolve("empty"))
    val bare = wrapped(s"cd $empty; exec $python -S -E -I \"$$@\"")
    assert(refusal(bare).contains("Install pyspark-ckpt into that Python"))
    assert(refusal(wrapped("export PYTHONHOME=/nowhere")).contains("works on that machine"))
    assert(refusal("/bin/true").contains("'/bin/true': it ended with status 0"))
    assert(refusal(folder.toString).contains("cannot be started"))
    assert(refusal("/no/such/python").contains("cannot be started"))
  }
}
