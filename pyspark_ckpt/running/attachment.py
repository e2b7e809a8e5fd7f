"""Give the state store to a running session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.jobs.spark_job import master_here
from pyspark_ckpt.pyspark_releases import require_commit_ids
from pyspark_ckpt.queries.session_confs import SessionConfs
from pyspark_ckpt.session import (
    CHECKPOINT_FORMAT,
    COMMIT_IDS,
    EXTENSIONS,
    FILES,
    JARS,
    PYTHON,
    REAL_TIME,
    WORKER_PYTHON,
    is_local,
    refuse_jars_of_other_releases,
    spark_conf,
)
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WHAT = "attach()"
_LOADERS = ("MutableURLClassLoader", "NonClosableMutableURLClassLoader", "ChildFirstURLClassLoader")
"""Spark's class loaders to which a jar can be added."""

_KEPT = (CHECKPOINT_FORMAT, FILES)
"""Confs that stay as they are if the session has them."""


def attach(spark: SparkSession, **options: str | float) -> SparkSession:
    """Keep the state of every stateful operator in this store, from now on, in a running session.

    Use it in notebooks and on platforms that create the session, and ``configure`` elsewhere. Queries that ``spark``
    starts later use the store, even on frames that already exist. Running queries and existing checkpoints keep their
    store. Another session of the application, such as one by ``newSession()``, needs its own call. ``options`` as for
    ``spark_conf``. A second call adds its options.

    The jar is put on the class path of the driver, and sent to the executors, if they do not have it. The rules of
    ``spark.sql.extensions`` are added to those of the session. If any of this is impossible, the error says what failed
    and which confs to set where the session is created; the session is then as it was, except that it may have the jar.
    A job checks that the Python of the executors has this package.

    Returns ``spark``. Raises InvalidInputError (an unknown option, a bad value, Spark Connect, a release of Spark
    without a jar), LifecycleError (the session was stopped, or cannot be given the store), NotFoundError (the jar was
    never built), ProcessError (PySpark is not installed).
    """
    require_extra("pyspark", _WHAT)
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise InvalidInputError(
            f"attach() needs a classic Spark session in this process, got {type(spark).__module__}."
            f"{type(spark).__name__}.",
            hint="Give the session that builder.getOrCreate() returns. Start a Spark Connect server with the settings "
            "of pyspark_ckpt.session.spark_conf().",
        )
    context = spark.sparkContext
    if context._jsc is None or context._jsc.sc().isStopped():  # noqa: SLF001
        raise LifecycleError("The Spark session was stopped.", hint="Create another one with configure().")
    confs = SessionConfs(session)
    wanted = _choose_confs(spark, confs, options)
    jar = wanted.pop(JARS)
    refuse_jars_of_other_releases([*_list_jars(context)], jar)
    with _worker_python(context, _find_python(context, confs)):
        _require_package(spark, wanted)
        _give_jar(spark, jar, wanted)
        _attach(context._jvm, session, confs, wanted, jar)  # noqa: SLF001
    return spark


@contextmanager
def _worker_python(context: Any, python: str) -> Iterator[None]:  # noqa: ANN401 - a SparkContext
    """Let Python workers run on an interpreter from now on; after an error, on the former one."""
    before = context.pythonExec
    context.pythonExec = python
    try:
        yield
    except BaseException:
        context.pythonExec = before
        raise


def _choose_confs(spark: SparkSession, confs: SessionConfs, options: Mapping[str, str | float]) -> dict[str, str]:
    """Return the confs to set, and the jar. Raises InvalidInputError, NotFoundError."""
    wanted = spark_conf(**options)
    if wanted.get(REAL_TIME) == "true":
        raise InvalidInputError(
            "real_time=True needs settings that a running session cannot get.",
            hint="Make a new session with pyspark_ckpt.configure(builder, real_time=True).",
        )
    wanted.pop(EXTENSIONS, None)
    for name in _KEPT:
        if name in wanted and confs.is_set(name):
            del wanted[name]
    if confs.is_set(CHECKPOINT_FORMAT) and confs.read(CHECKPOINT_FORMAT) == COMMIT_IDS:
        require_commit_ids(f"{CHECKPOINT_FORMAT}={COMMIT_IDS}")
    if PYTHON not in wanted and not confs.is_set(PYTHON):
        wanted[PYTHON] = _find_python(spark.sparkContext, confs)
    return wanted


def _find_python(context: Any, confs: SessionConfs) -> str:  # noqa: ANN401 - a SparkContext
    """Return the interpreter that Python workers must use; with a local master, this one if none is named."""
    is_named = confs.is_set(WORKER_PYTHON) or "PYSPARK_PYTHON" in os.environ
    return sys.executable if is_local({"spark.master": context.master}) and not is_named else str(context.pythonExec)


def _list_jars(context: Any) -> Iterator[str]:  # noqa: ANN401 - a SparkContext
    jars = context._jsc.sc().listJars()  # noqa: SLF001
    for number in range(jars.size()):
        yield str(jars.apply(number))


def _require_package(spark: SparkSession, wanted: Mapping[str, str]) -> None:
    """Raise LifecycleError unless the Python of the executors has the same release of this package."""
    own_release = str(import_module("pyspark_ckpt").__version__)  # not at the top: the package imports this module

    def find_release(_number: int) -> tuple[str, str]:  # by value: a worker may not have this module
        import platform  # noqa: PLC0415
        import sys  # noqa: PLC0415
        from importlib import import_module  # noqa: PLC0415

        where = f"{sys.executable} on {platform.node()}"
        try:
            return str(import_module("pyspark_ckpt").__version__), where
        except ImportError:
            return "", where

    tasks = max(1, spark.sparkContext.defaultParallelism)
    try:
        found = set(spark.sparkContext.parallelize(range(tasks), tasks).map(find_release).collect())
    except Exception as problem:
        raise _refuse(f"A job that looks for this package on the executors has failed: {problem}", wanted) from problem
    if others := {release for release, _ in found} - {own_release}:
        wheres = ", ".join(sorted(where for release, where in found if release != own_release))
        has = " and ".join(f"pyspark-ckpt {each}" if each else "no pyspark-ckpt" for each in sorted(others))
        raise _refuse(
            f"Python of the executors has {has} ({wheres}), but this driver has pyspark-ckpt {own_release}.",
            wanted,
            "Install this release there: docs/deploying.md.",
        )


def _give_jar(spark: SparkSession, jar: str, wanted: Mapping[str, str]) -> None:
    """Put the jar on the class paths of the driver and of the executors. Raises LifecycleError."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see the docstring of the package

    context = spark.sparkContext
    jvm: Any = context._jvm  # noqa: SLF001
    if not _has_class(jvm):
        loader = _find_loader(jvm)
        if loader is None:
            raise _refuse("No class loader of this driver takes another jar.", {JARS: jar, **wanted})
        loader.addURL(jvm.java.io.File(jar).toURI().toURL())
        if not _has_class(jvm):
            raise _refuse(f"The driver does not find the classes of {jar}.", {JARS: jar, **wanted})
    try:
        if master_here(context) is None:  # else the driver runs the tasks
            _send_jar(context, jar)
        jvm.org.apache.spark.sql.ckpt.plan.Attachment.checkExecutors(spark._jsparkSession)  # noqa: SLF001
    except Py4JJavaError as problem:
        raise _refuse(
            f"The executors do not get the jar {jar}: {_shorten(problem.java_exception)}", {JARS: jar, **wanted}
        ) from problem


def _send_jar(context: Any, jar: str) -> None:  # noqa: ANN401 - a SparkContext
    name = jar.rpartition("/")[2]
    if not any(each.rpartition("/")[2] == name for each in _list_jars(context)):
        context._jsc.sc().addJar(jar)  # noqa: SLF001


def _has_class(jvm: Any) -> bool:  # noqa: ANN401 - the gateway
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see the docstring of the package

    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(PROVIDER_CLASS, False, loader)
    except Py4JJavaError:
        return False
    return True


def _find_loader(jvm: Any) -> Any | None:  # noqa: ANN401 - objects of the JVM
    """Return the driver's topmost class loader that takes jars, so that all others see its classes."""
    loader, found = jvm.java.lang.Thread.currentThread().getContextClassLoader(), None
    while loader is not None:
        if loader.getClass().getSimpleName() in _LOADERS:
            found = loader
        loader = loader.getParent()
    return found


def _attach(jvm: Any, session: Any, confs: SessionConfs, wanted: Mapping[str, str], jar: str) -> None:  # noqa: ANN401
    """Set the confs and add the rules: both, or neither. Raises LifecycleError."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - see the docstring of the package

    attachment = jvm.org.apache.spark.sql.ckpt.plan.Attachment
    try:
        for name, value in wanted.items():
            confs.set(name, value)
        attachment.attach(session)
    except BaseException as problem:
        confs.undo()
        if isinstance(problem, Py4JError):
            cause = _shorten(getattr(problem, "java_exception", problem))
            raise _refuse(f"This Spark does not let a session change: {cause}", {JARS: jar, **wanted}) from problem
        raise


def _shorten(problem: object) -> str:
    """Return the first line of an exception of the JVM."""
    return str(problem).strip().partition("\n")[0][:500]


def _refuse(message: str, wanted: Mapping[str, str], advice: str = "") -> LifecycleError:
    """Return the error for a session that cannot be given the store, and is as it was."""
    lines = "\n".join(f"{name} {value}" for name, value in wanted.items())
    more = f"{advice} " if advice else ""
    return LifecycleError(
        f"The session was not given the store, and is as it was. {message}",
        hint=f"{more}If you can set the confs of the session or its cluster before it is created, set these:\n{lines}",
    )
