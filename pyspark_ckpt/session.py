"""Install the state store in a Spark session: the jar, the provider class and the options."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.jars.finding import JAR_OF, find_jar
from pyspark_ckpt.pyspark_releases import (
    find_jars_of_spark,
    find_minor_release,
    find_release,
    finds_extensions,
    has_commit_ids_for_all,
    refuse_incomplete_release,
    require_commit_ids,
    require_real_time,
)
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF
from pyspark_ckpt.state_store.options import PREFIX, canonical_text, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PROVIDER_CLASS", "configure", "jar_path", "spark_conf"]

JARS = "spark.jars"
_MASTER = "spark.master"
PYTHON = PREFIX + "python"
WORKER_PYTHON = "spark.pyspark.python"
_DAEMON = "spark.python.daemon.module"
_OUR_DAEMON = "pyspark_ckpt.daemon"
_OUR_JAR = re.compile(rf"{JAR_OF}[0-9.]+\.jar")
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
COMMIT_IDS = "2"
EXTENSIONS = "spark.sql.extensions"
_OUR_EXTENSIONS = "org.apache.spark.sql.ckpt.plan.Extensions"
FILES = "spark.sql.streaming.checkpointFileManagerClass"
_OUR_FILES = "org.apache.spark.sql.ckpt.FencedCheckpointFileManager"
_DEFAULT_PYTHON = "PYSPARK_CKPT_DEFAULT_PYTHON"
"""The variable of this process that names a PYSPARK_PYTHON which was set by default and not by the user."""


def jar_path() -> str:
    """Return the absolute path of the shim's jar for the installed PySpark.

    If the driver's JVM runs and has that jar, by ``--jars``, it is this one. If the package lacks the jar, it is built
    first, from the package's sources and with PySpark's Scala compiler, which takes half a minute. It is kept in
    ``~/.cache/pyspark-ckpt``, or in the folder that the variable ``PYSPARK_CKPT_JARS`` names.

    Raises InvalidInputError (a release of Spark that this package is not for, or that lacks classes which the jar
    calls), NotFoundError (the package lacks its sources), ProcessError (PySpark is not installed, or the jar cannot be
    built).
    """
    require_extra("pyspark", "jar_path()")
    refuse_incomplete_release()
    version = sys.modules[__package__].__version__
    minor = find_minor_release()
    loaded = _locate_class(PROVIDER_CLASS) if _jvm_is_running() else None
    if loaded is not None and loaded.name == f"{JAR_OF}{minor}.jar":
        return str(loaded)
    return str(find_jar(minor, find_release(), _find_jars_of_spark, version))


REAL_TIME = PREFIX + "realTime"
_OF_REAL_TIME = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 - the path of a socket has at most 108 bytes
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
}
"""What a session for real-time mode needs besides: Spark's own check does not know our operators, which check the same;
TCP sockets would delay each answer of a worker by 40 ms, and the shuffle each row by up to 50."""


def spark_conf(**options: str | float) -> dict[str, str]:
    """Return every Spark conf that a new session needs, for places where ``configure`` cannot be called.

    ``options`` are those of docs/options.md in snake case: ``memory_limit="1g"`` sets
    ``spark.sql.streaming.stateStore.ckpt.memoryLimit``. Raises InvalidInputError (an unknown option, a bad value),
    NotFoundError (the jar was never built).
    """
    keys = {_camel_case(name): _text(value) for name, value in options.items()}
    parse(keys)
    given = {PREFIX + key: canonical_text(key, text) for key, text in keys.items()}
    jar = jar_path()
    ours = {PROVIDER_CONF: PROVIDER_CLASS, FILES: _OUR_FILES}
    if has_commit_ids_for_all():
        ours[CHECKPOINT_FORMAT] = COMMIT_IDS
    if not finds_extensions():
        ours[EXTENSIONS] = _OUR_EXTENSIONS
    if given.get(REAL_TIME) == "true":
        require_real_time()
        del ours[PROVIDER_CONF]  # Spark starts no query in real-time mode from a session that names it
        ours |= _OF_REAL_TIME
    return {JARS: jar, **ours, **given}


def configure(builder: SparkSession.Builder, **options: str | float) -> SparkSession.Builder:
    """Keep the state of every stateful operator in this store, in the session that ``builder`` makes.

    Returns ``builder``. Call it last, because it reads the builder's settings, and before the session exists: for a
    running session, see ``attach``. Jars, extensions, a checkpoint format version and a checkpoint file manager that
    are already set stay as they are, and so do jars given to spark-submit. Existing checkpoints stay with the store
    that wrote them.

    With a local master, the state server and Python workers run on this interpreter, unless another one is configured.
    Python workers on this interpreter are forked with their modules preloaded (``spark.python.daemon.module``). If
    the builder, ``PYSPARK_SUBMIT_ARGS`` or spark-defaults.conf names an interpreter (``spark.pyspark.python``), Python
    workers use it: ``PYSPARK_PYTHON``, the only variable that PySpark reads, is set to it.
    ``options`` as for ``spark_conf``. With ``real_time=True``, queries may have the trigger ``realTime``, in Spark 4.3:
    the session then names no provider, and each query of it keeps its state here all the same.

    Raises InvalidInputError (an unknown option, a bad value, Spark Connect, a release of Spark without a jar,
    checkpoint format 2 before Spark 4.0), LifecycleError (a session without the jar runs already), NotFoundError (the
    jar was never built), ProcessError (PySpark is not installed).
    """
    require_extra("pyspark", "configure()")
    if not hasattr(builder, "_options"):
        raise InvalidInputError(
            f"builder must be SparkSession.builder, got {repr(builder)[:200]} of type {type(builder).__name__}.",
            hint="For a running session, call attach(spark).",
        )
    already: dict[str, Any] = builder._options  # noqa: SLF001 - PySpark has no public way to ask a builder
    if "spark.remote" in already or "SPARK_REMOTE" in os.environ:
        raise InvalidInputError(
            "configure() needs a session in this process, but this is a Spark Connect client. "
            "Start the Connect server with the settings of pyspark_ckpt.session.spark_conf()."
        )
    _forget_default_python()
    conf = spark_conf(**options)
    parse({key: _text(value) for key, value in already.items() if key.startswith(PREFIX)})
    _follow_settings(conf, already)
    runs_here = is_local(already)
    is_named = PYTHON in conf or bool(already.keys() & {PYTHON, WORKER_PYTHON}) or "PYSPARK_PYTHON" in os.environ
    _name_python_of_workers(already, default=sys.executable if runs_here else "")
    if runs_here:
        if not is_named:
            conf[PYTHON] = sys.executable
        if _workers_run_on_this() and _DAEMON not in already and not _set_elsewhere(_DAEMON):
            conf[_DAEMON] = _OUR_DAEMON
    jar = conf[JARS]
    jars = _split(str(already[JARS])) if JARS in already else _jars_set_elsewhere(jar)
    refuse_jars_of_other_releases(jars, jar)
    conf[JARS] = _join(jars, jar)
    if EXTENSIONS in conf:
        conf[EXTENSIONS] = _join(_split(str(already.get(EXTENSIONS) or _set_elsewhere(EXTENSIONS))), _OUR_EXTENSIONS)
    _give_to_running_jvm(jar)
    for key, value in conf.items():
        builder.config(key, value)
    return builder


def _follow_settings(conf: dict[str, str], already: Mapping[str, Any]) -> None:
    """Let what the user has set stand. Raises InvalidInputError (it cannot be followed)."""
    if CHECKPOINT_FORMAT in already:
        conf[CHECKPOINT_FORMAT] = str(already[CHECKPOINT_FORMAT])
    if conf.get(CHECKPOINT_FORMAT) == COMMIT_IDS:
        require_commit_ids(f"{CHECKPOINT_FORMAT}={COMMIT_IDS}")
    if conf.get(REAL_TIME) == "true":
        _refuse_named_provider(already)
    for key in conf.keys() & {FILES, *_OF_REAL_TIME}:
        if key in already or _set_elsewhere(key):
            del conf[key]


def _refuse_named_provider(already: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if the session would name a provider: Spark would start no query in real-time mode."""
    named = already.get(PROVIDER_CONF) or _set_elsewhere(PROVIDER_CONF)
    if named:
        raise InvalidInputError(
            f"real_time=True, but {PROVIDER_CONF} is {named}: from such a session, Spark starts no query in real-time "
            "mode.",
            hint="Leave the conf out: all queries keep their state here.",
        )


def _text(value: str | float) -> str:
    """Return a value as Spark writes it in its confs: True becomes true, and 90.0 becomes 90."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _join(names: Sequence[str], ours: str) -> str:
    return ",".join(names if ours in names else [*names, ours])


def refuse_jars_of_other_releases(jars: Sequence[str], ours: str) -> None:
    """Raise InvalidInputError if a session would have the jar for another release of Spark, too."""
    name = ours.rpartition("/")[2]
    for jar in jars:
        other = jar.rpartition("/")[2]
        if _OUR_JAR.fullmatch(other) and other != name:
            raise InvalidInputError(
                f"The session would load {jar}, which is for another Spark: PySpark {find_release()} is installed.",
                hint=f"Leave it out of spark.jars and --jars: configure() adds {name}.",
            )


def _jars_set_elsewhere(jar: str) -> list[str]:
    """Return the jars that the session would have if the builder set none. A builder's setting hides them."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    by_flag = [_split(value) for flag, value in pairwise(arguments) if flag == "--jars"]
    if by_flag:
        refuse_jars_of_other_releases(by_flag[-1], jar)
    if by_flag and jar not in by_flag[-1] and not _jvm_is_running():
        raise InvalidInputError(
            f"PYSPARK_SUBMIT_ARGS has --jars, which hides every other jar from the driver. Add {jar} there."
        )
    return _split(_set_elsewhere(JARS, "--jars"))


def is_local(already: dict[str, Any]) -> bool:
    """Whether driver and executors run on this machine, so that they can use this interpreter."""
    master = already.get(_MASTER) or os.environ.get("MASTER") or _set_elsewhere(_MASTER, "--master")
    return str(master or "local").startswith("local")


def _name_python_of_workers(already: dict[str, Any], default: str) -> None:
    """Apply ``spark.pyspark.python`` to Python workers, also in a script that spark-submit did not start.

    spark-submit sets PYSPARK_PYTHON for the scripts that it starts. PySpark reads only this variable, when the context
    is made. ``default``: the interpreter if nothing names one; empty for PySpark's own choice, the ``python3`` of PATH.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    named = str(already.get(WORKER_PYTHON) or _set_elsewhere(WORKER_PYTHON))
    default = "" if named or "PYSPARK_PYTHON" in os.environ else default
    if (named or default) and SparkContext._active_spark_context is None:  # noqa: SLF001
        os.environ["PYSPARK_PYTHON"] = named or default
        if default:
            os.environ[_DEFAULT_PYTHON] = default


def _forget_default_python() -> None:
    """Remove the interpreter that an earlier local session got by default: the user did not choose it.

    The next session may run on a cluster, whose machines do not have it.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    if SparkContext._active_spark_context is None:  # noqa: SLF001
        default = os.environ.pop(_DEFAULT_PYTHON, None)
        if default is not None and os.environ.get("PYSPARK_PYTHON") == default:
            del os.environ["PYSPARK_PYTHON"]


def _workers_run_on_this() -> bool:
    """Whether Python workers on this machine use this interpreter, which has the package."""
    found = shutil.which(os.environ.get("PYSPARK_PYTHON", "python3"))
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()


def _set_elsewhere(key: str, flag: str | None = None) -> str:
    """Return what the session would have for ``key`` if the builder did not set it; empty if nothing.

    ``flag``: the flag of spark-submit that sets it, too, if there is one.
    """
    if _jvm_is_running():
        from pyspark import SparkConf  # noqa: PLC0415 - see the docstring of the package

        return SparkConf().get(key, "") or ""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for name, value in pairwise(arguments):
        if name == flag:
            return value
        if name == "--conf" and value.startswith(f"{key}="):
            return value.removeprefix(f"{key}=")
    return _set_in_defaults(key)


def _set_in_defaults(key: str) -> str:
    """Return what spark-defaults.conf has for ``key``; empty if nothing. Looks where Spark looks for the file."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - see the docstring of the package

    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    defaults = Path(folder) / "spark-defaults.conf"
    lines = defaults.read_text(encoding="utf-8").splitlines() if defaults.is_file() else []
    for line in lines:
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if name == key:
            return value.strip()
    return ""


def _jvm_is_running() -> bool:
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    return SparkContext._jvm is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: SLF001


def _give_to_running_jvm(jar: str) -> None:
    """Put ``jar`` on the class path of a JVM that spark-submit or an earlier session has started.

    ``spark.jars`` alone reaches the executors of the new session, but not the driver's class loader: Spark fills that
    when the JVM starts.
    """
    if not _jvm_is_running():
        return
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    if _locate_class(PROVIDER_CLASS) is None:
        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            raise LifecycleError(
                "A Spark session without the jar of pyspark-ckpt is already running. Give it the store with "
                f"pyspark_ckpt.attach(spark), stop it first, or start it with --jars {jar}."
            )
        jvm = _running_jvm()
        jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.io.File(jar).toURI().toURL())


def _find_jars_of_spark() -> Path:
    """Return the folder of the jars of Spark. A container of YARN has a JVM that knows it, and no ``SPARK_HOME``."""
    spark = _locate_class("org.apache.spark.SparkContext") if _jvm_is_running() else None
    return find_jars_of_spark() if spark is None else spark.parent


def _locate_class(name: str) -> Path | None:
    """Return the jar that the running JVM has a class from; None if it has no such class."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see the docstring of the package

    jvm = _running_jvm()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        found = jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return None
    return Path(jvm.java.io.File(found.getProtectionDomain().getCodeSource().getLocation().toURI()).getPath())


def _running_jvm() -> Any:  # noqa: ANN401 - py4j's view of it
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    SparkContext._ensure_initialized()  # noqa: SLF001
    return SparkContext._jvm  # noqa: SLF001
