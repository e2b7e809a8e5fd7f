// The shim. It is compiled against the jars that the installed PySpark brings, so that it fits that Spark exactly.
import scala.sys.process._

ThisBuild / scalaVersion := "2.13.18" // the Scala of PySpark 4.3's jars

lazy val python = sys.env.getOrElse("PYTHON", ".venv/bin/python")
lazy val pysparkJars = settingKey[File]("the folder of jars inside the installed PySpark")

lazy val bridge = (project in file("."))
  .settings(
    name := "pyspark-ckpt",
    version := """__version__ = "(.+)"""".r
      .findFirstMatchIn(IO.read(baseDirectory.value / "pyspark_ckpt" / "__init__.py")).get.group(1),
    crossPaths := false,
    autoScalaLibrary := false,
    pysparkJars := file(
      Seq(python, "-c", "import importlib.util as u; print(u.find_spec('pyspark').submodule_search_locations[0])").!!.trim) / "jars",
    Compile / unmanagedJars ++= (pysparkJars.value ** "*.jar").classpath,
    Compile / scalaSource := baseDirectory.value / "jvm-bridge" / "src" / "main" / "scala",
    Compile / resourceDirectory := baseDirectory.value / "jvm-bridge" / "src" / "main" / "resources",
    Test / scalaSource := baseDirectory.value / "jvm-bridge" / "src" / "test" / "scala",
    Test / resourceDirectory := baseDirectory.value / "jvm-bridge" / "src" / "test" / "resources",
    target := baseDirectory.value / "jvm-bridge" / "target",
    scalacOptions ++= Seq("-release", "17", "-deprecation", "-feature", "-unchecked", "-Xlint", "-Werror"),
    // The table of options is one file, read by the shim and by the state server.
    Compile / resourceGenerators += Def.task {
      val from = baseDirectory.value / "state_store" / "options.json"
      val to = (Compile / resourceManaged).value / "pyspark_ckpt" / "options.json"
      IO.copyFile(from, to)
      Seq(to)
    }.taskValue,
    Compile / packageBin / artifactPath := baseDirectory.value / "pyspark_ckpt" / "jars" / "pyspark-ckpt.jar",
    Compile / packageDoc / publishArtifact := false,
    libraryDependencies += "org.scalatest" %% "scalatest" % "3.2.20" % Test,
    Test / fork := true,
    Test / baseDirectory := baseDirectory.value,
    Test / testOptions += Tests.Argument(TestFrameworks.ScalaTest, "-oD"), // with how long each test took
    // What Spark's own launcher gives its JVMs on Java 17.
    Test / javaOptions ++= Seq("-Xmx1g", "-Dio.netty.tryReflectionSetAccessible=true") ++
      Seq("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") ++ // they live for a minute
      Seq("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
        "sun.util.calendar").map(name => s"--add-opens=java.base/$name=ALL-UNNAMED"))

// `sbt "format/run ..."`: scalafmt as a program, resolved only when it is asked for.
lazy val format = (project in file(".tools/scalafmt"))
  .settings(
    libraryDependencies += "org.scalameta" %% "scalafmt-cli" % "3.7.17",
    Compile / mainClass := Some("org.scalafmt.cli.Cli"),
    Compile / run / fork := true,
    Compile / run / baseDirectory := (LocalRootProject / baseDirectory).value)

addCommandAlias("formatScala", "format/run --non-interactive jvm-bridge")
addCommandAlias("checkScala", "format/run --non-interactive --test jvm-bridge")
