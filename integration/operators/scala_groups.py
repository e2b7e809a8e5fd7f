"""Queries of ``GroupQueries.scala``, in a session of a Python test: compiled when first asked for."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

SOURCE = Path(__file__).with_name("GroupQueries.scala")
_NAME = "pyspark_ckpt.tests.GroupQueries"
_KEPT = tempfile.TemporaryDirectory(prefix="pyspark-ckpt-test-")
_COMPILING = threading.Lock()


def group_query(name: str) -> Callable[[Sequence[DataFrame]], DataFrame]:
    """A query with the method ``name``, on events with a watermark of five minutes."""

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        events = frames[0].withWatermark("at", "5 minutes").selectExpr("coalesce(user, -1) AS user", "id", "at")
        session = events.sparkSession
        context = session.sparkContext
        gateway: Any = context._gateway
        with _COMPILING:  # two queries may be made at once, and only one is to write the jar
            jar = compiled(SOURCE)
        context._jsc.addJar(str(jar))  # for the tasks, which make the functions anew
        loader = make_loader(gateway, jar)
        arguments = gateway.new_array(gateway.jvm.Object, 1)
        arguments[0] = events._jdf
        (method,) = (each for each in loader.loadClass(_NAME).getMethods() if each.getName() == name)
        return type(events)(method.invoke(None, arguments), session)

    return query


def make_loader(gateway: Any, jar: Path) -> Any:  # noqa: ANN401 - objects of the JVM
    """A class loader that has the classes of a jar, too."""
    urls = gateway.new_array(gateway.jvm.java.net.URL, 1)
    urls[0] = gateway.jvm.java.io.File(str(jar)).toURI().toURL()
    return gateway.jvm.java.net.URLClassLoader(urls, gateway.jvm.Thread.currentThread().getContextClassLoader())


@cache
def compiled(source: Path) -> Path:
    """A jar with the classes of a file, made by the Scala compiler inside PySpark."""
    jar = Path(_KEPT.name) / f"{source.stem}.jar"
    jars = Path(pyspark.__file__).with_name("jars")
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else Path("java")
    compiler = [str(java), "-Xss4m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", "scala.tools.nsc.Main"]
    subprocess.run([*compiler, "-usejavacp", "-release", "17", "-d", str(jar), str(source)], check=True)
    return jar
