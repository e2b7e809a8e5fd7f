// The shim: one jar for each minor release of Spark. Each is compiled against the jars that its PySpark brings, so that it
// fits that Spark exactly. The sources of a jar: `sources` of jvm-bridge/build_jar.py.
import scala.sys.process._

lazy val python = sys.env.getOrElse("PYTHON", ".venv/bin/python")
lazy val pysparkJars = taskKey[File]("the folder of jars inside a PySpark")

/** The Scala of each PySpark's jars. */
val scalaOf = Map("3.5" -> "2.12.18", "4.0" -> "2.13.16", "4.1" -> "2.13.17", "4.2" -> "2.13.18", "4.3" -> "2.13.18")

def linesOf(command: Seq[String], root: File): Seq[String] = Process(command, root).!!.linesIterator.toSeq

/** A jar for one release. `interpreter`: the Python that has it. */
def shim(id: String, minor: String, folder: File, interpreter: String): Project = Project(id, folder).settings(
  name := "pyspark-ckpt",
  version := """__version__ = "(.+)"""".r
    .findFirstMatchIn(IO.read((LocalRootProject / baseDirectory).value / "pyspark_ckpt" / "__init__.py")).get.group(1),
  scalaVersion := scalaOf(minor),
  crossPaths := false,
  autoScalaLibrary := false,
  pysparkJars := file(
    linesOf(
      Seq(interpreter, "-c", "import importlib.util as u; print(u.find_spec('pyspark').submodule_search_locations[0])"),
      (LocalRootProject / baseDirectory).value).head) / "jars",
  Compile / unmanagedJars ++= (pysparkJars.value ** "*.jar").classpath,
  Compile / unmanagedSources := linesOf(
    Seq(interpreter, "jvm-bridge/build_jar.py", "--sources", minor), (LocalRootProject / baseDirectory).value).map(file),
  Compile / unmanagedSourceDirectories := Nil,
  Compile / resourceDirectory := (LocalRootProject / baseDirectory).value / "jvm-bridge" / "src" / "main" / "resources",
  target := (LocalRootProject / baseDirectory).value / "jvm-bridge" / "target" / s"spark-$minor",
  scalacOptions ++= "-release" +: linesOf(
    Seq(interpreter, "jvm-bridge/build_jar.py", "--byte-code", minor), (LocalRootProject / baseDirectory).value),
  scalacOptions ++= Seq("-deprecation", "-feature", "-unchecked", "-Xlint", "-Werror"),
  // Each table, of options and of metrics, is one file, read by the shim and in Python.
  Compile / resourceGenerators += Def.task {
    Seq("options.json", "metrics.json").map { name =>
      val to = (Compile / resourceManaged).value / "pyspark_ckpt" / name
      IO.copyFile((LocalRootProject / baseDirectory).value / "state_store" / name, to)
      to
    }
  }.taskValue,
  Compile / packageBin / artifactPath :=
    (LocalRootProject / baseDirectory).value / "pyspark_ckpt" / "jars" / s"pyspark-ckpt-spark-$minor.jar",
  Compile / packageDoc / publishArtifact := false)

/** The one that is developed with, and has the tests. */
lazy val bridge = shim("bridge", "4.3", file("."), python).settings(
  Test / scalaSource := baseDirectory.value / "jvm-bridge" / "src" / "test" / "scala",
  Test / resourceDirectory := baseDirectory.value / "jvm-bridge" / "src" / "test" / "resources",
  libraryDependencies += "org.scalatest" %% "scalatest" % "3.2.20" % Test,
  libraryDependencies += "org.jetbrains.lincheck" % "lincheck" % "3.7" % Test,
  Test / fork := true,
  Test / baseDirectory := baseDirectory.value,
  Test / testOptions += Tests.Argument(TestFrameworks.ScalaTest, "-oDI"), // how long each took; failures again at the end
  // What Spark's own launcher gives its JVMs on Java 17.
  Test / javaOptions ++= Seq("-Xmx1g", "-Dio.netty.tryReflectionSetAccessible=true") ++
    Seq("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") ++ // they live for a minute
    Seq("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
      "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
      "sun.util.calendar").map(name => s"--add-opens=java.base/$name=ALL-UNNAMED"))

def other(minor: String): Project =
  shim(s"spark-$minor".replace('.', '_'), minor, file(s".tools/sbt/$minor"), s".tools/spark-$minor/bin/python")

lazy val spark35 = other("3.5")
lazy val spark40 = other("4.0")
lazy val spark41 = other("4.1")
lazy val spark42 = other("4.2")

// `sbt "format/run ..."`: scalafmt as a program, resolved only when it is asked for.
lazy val format = (project in file(".tools/scalafmt"))
  .settings(
    scalaVersion := scalaOf("4.3"),
    libraryDependencies += "org.scalameta" %% "scalafmt-cli" % "3.7.17",
    Compile / mainClass := Some("org.scalafmt.cli.Cli"),
    Compile / run / fork := true,
    Compile / run / baseDirectory := (LocalRootProject / baseDirectory).value)

addCommandAlias("formatScala", "format/run --non-interactive jvm-bridge")
addCommandAlias("checkScala", "format/run --non-interactive --test jvm-bridge")
