"""What a user imports: the settings of a session, and the errors if they cannot work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt
from pyspark_ckpt import session
from pyspark_ckpt.jars import finding
from pyspark_ckpt.state_store import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parent.parent
PREFIX = "spark.sql.streaming.stateStore."
FILES = "spark.sql.streaming.checkpointFileManagerClass"
DAEMON = "spark.python.daemon.module"
JAR = "/made/up/pyspark-ckpt.jar"


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jar that is there, and nothing from outside that says where other jars are."""
    monkeypatch.setattr(session, "jar_path", lambda: JAR)
    monkeypatch.setattr(session, "_jvm_is_running", lambda: False)
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python3")


@pytest.fixture
def builder() -> Iterator[SparkSession.Builder]:
    made = SparkSession.Builder()
    made._options = {}
    yield made
    made._options = {}


def test_import_stays_light_when_the_state_server_starts() -> None:
    code = "import sys, pyspark_ckpt; sys.exit(' '.join({'pyspark', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.stderr.strip()


def test_a_name_of_a_module_is_found_for_who_looks_for_it_at_the_top() -> None:
    with pytest.raises(AttributeError, match=r"open_state\. It is pyspark_ckpt\.reading\.open_state$"):
        _ = pyspark_ckpt.open_state  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"attribute nothing_of_that_name$"):
        _ = pyspark_ckpt.nothing_of_that_name  # type: ignore[attr-defined]


def test_face_names_every_error_of_the_tree() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree <= set(pyspark_ckpt.errors.__all__)
    assert all(getattr(pyspark_ckpt.errors, name) is getattr(errors, name) for name in tree)


def test_the_face_is_small() -> None:
    assert len(vars(pyspark_ckpt)["__all__"]) <= 45


def test_configure_returns_the_builder_with_provider_format_and_jar(builder: SparkSession.Builder) -> None:
    assert pyspark_ckpt.configure(builder) is builder
    assert builder._options == {
        "spark.jars": JAR,
        PREFIX + "providerClass": pyspark_ckpt.session.PROVIDER_CLASS,
        PREFIX + "checkpointFormatVersion": "2",
        FILES: "org.apache.spark.sql.ckpt.FencedCheckpointFileManager",
    }
    assert builder._options == pyspark_ckpt.session.spark_conf()


def test_a_checkpoint_file_manager_that_the_user_has_set_stays(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark_ckpt.configure(builder.config(FILES, "mine"))
    assert builder._options[FILES] == "mine"
    del builder._options[FILES]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {FILES}=mine pyspark-shell")
    pyspark_ckpt.configure(builder)
    assert FILES not in builder._options


def test_an_option_that_is_true_in_python_is_true_for_spark(builder: SparkSession.Builder) -> None:
    pyspark_ckpt.configure(builder, allow_non_restored_state=True)
    assert builder._options[PREFIX + "ckpt.allowNonRestoredState"] == "true"


def test_configure_changes_nothing_when_it_is_called_twice(builder: SparkSession.Builder) -> None:
    once = dict(pyspark_ckpt.configure(builder)._options)
    assert pyspark_ckpt.configure(builder)._options == once


def test_configure_keeps_jars_and_format_when_they_are_set(builder: SparkSession.Builder) -> None:
    builder.config("spark.jars", "a.jar, b.jar").config(PREFIX + "checkpointFormatVersion", 1)
    pyspark_ckpt.configure(builder)
    assert builder._options["spark.jars"] == f"a.jar,b.jar,{JAR}"
    assert builder._options[PREFIX + "checkpointFormatVersion"] == "1"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--conf spark.jars=a.jar,b.jar pyspark-shell", f"a.jar,b.jar,{JAR}"),
        (f"--jars a.jar,{JAR} pyspark-shell", f"a.jar,{JAR}"),
        ("--master local[2] pyspark-shell", JAR),
    ],
)
def test_configure_keeps_jars_when_the_environment_names_them(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch, arguments: str, expected: str
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert pyspark_ckpt.configure(builder)._options["spark.jars"] == expected


def test_configure_refuses_submit_args_when_they_hide_the_jar(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars a.jar pyspark-shell")
    with pytest.raises(pyspark_ckpt.InvalidInputError, match=f"Add {JAR} there"):
        pyspark_ckpt.configure(builder)


def test_configure_keeps_jars_when_spark_defaults_name_them(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# jars\nspark.jars.packages x:y:1\nspark.jars  a.jar\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert pyspark_ckpt.configure(builder)._options["spark.jars"] == f"a.jar,{JAR}"


def test_options_are_written_as_the_jvm_reads_them() -> None:
    given: dict[str, str | float] = {"compression": "ZSTD", "log_level": " debug", "worker_memory": "2 m"}
    conf = pyspark_ckpt.session.spark_conf(**given, place_timeout=90.0, start_timeout="2 min", local_dir="/a folder")
    prefix = "spark.sql.streaming.stateStore.ckpt."
    assert {key.removeprefix(prefix): value for key, value in conf.items() if key.startswith(prefix)} == {
        "compression": "zstd",
        "logLevel": "DEBUG",
        "workerMemory": "2m",
        "placeTimeout": "90",
        "startTimeout": "2min",
        "localDir": "/a folder",
    }
    refused = r"placeTimeout has the value '1\.5m?': it must be a whole number"
    for value in ("1.5m", 1.5):
        with pytest.raises(errors.InvalidInputError, match=refused):
            pyspark_ckpt.session.spark_conf(place_timeout=value)


def test_options_become_spark_confs_when_given_in_snake_case(builder: SparkSession.Builder) -> None:
    pyspark_ckpt.configure(builder, memory_limit="1g", snapshot_every_versions=5)
    assert builder._options[PREFIX + "ckpt.memoryLimit"] == "1g"
    assert builder._options[PREFIX + "ckpt.snapshotEveryVersions"] == "5"


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", None])
def test_state_server_runs_on_this_interpreter_when_the_session_is_local(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch, master: str | None
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    if master:
        builder.master(master)
    assert pyspark_ckpt.configure(builder)._options[PREFIX + "ckpt.python"] == sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable, "workers do, too: python3 of PATH may lack the package"


def test_the_interpreter_of_workers_is_left_to_spark_on_a_cluster(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    pyspark_ckpt.configure(builder.master("spark://host:7077"))
    assert "PYSPARK_PYTHON" not in os.environ


def test_the_default_of_a_local_session_is_not_that_of_a_later_session_on_a_cluster(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    pyspark_ckpt.configure(builder)
    assert pyspark_ckpt.configure(builder)._options[PREFIX + "ckpt.python"] == sys.executable
    pyspark_ckpt.configure(builder.master("spark://host:7077"))
    assert "PYSPARK_PYTHON" not in os.environ
    pyspark_ckpt.configure(builder.master("local"))
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    pyspark_ckpt.configure(builder.master("spark://host:7077"))
    assert os.environ["PYSPARK_PYTHON"] == "python3", "somebody chose it since"


@pytest.mark.parametrize(
    ("key", "value"),
    [("spark.master", "spark://host:7077"), ("spark.pyspark.python", "python3"), (PREFIX + "ckpt.python", "python3")],
)
def test_state_server_runs_on_the_interpreter_of_the_conf_when_this_one_may_not_be_there(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    pyspark_ckpt.configure(builder.config(key, value))
    assert builder._options.get(PREFIX + "ckpt.python") != sys.executable


@pytest.mark.parametrize("before", ["/another/python", None])
@pytest.mark.parametrize("where", ["builder", "arguments", "defaults"])
def test_the_interpreter_of_the_conf_is_that_of_workers(
    where: str, before: str | None, builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PySpark asks only the variable when it makes a context."""
    monkeypatch.delenv("PYSPARK_PYTHON")
    if before is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", before)
    if where == "builder":
        builder.config("spark.pyspark.python", "/env/bin/python")
    elif where == "arguments":
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.pyspark.python=/env/bin/python pyspark-shell")
    else:
        (tmp_path / "spark-defaults.conf").write_text("spark.pyspark.python  /env/bin/python\n")
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    pyspark_ckpt.configure(builder)
    assert os.environ["PYSPARK_PYTHON"] == "/env/bin/python"


def test_the_interpreter_of_the_variable_stays_when_no_conf_names_one(builder: SparkSession.Builder) -> None:
    pyspark_ckpt.configure(builder)
    assert os.environ["PYSPARK_PYTHON"] == "/no/such/python3"


def test_workers_of_this_interpreter_are_forked_by_our_daemon(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DAEMON not in pyspark_ckpt.configure(builder)._options
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert pyspark_ckpt.configure(builder)._options[DAEMON] == "pyspark_ckpt.daemon"
    builder.config(DAEMON, "mine")
    assert pyspark_ckpt.configure(builder)._options[DAEMON] == "mine"


def test_workers_elsewhere_are_forked_by_sparks_daemon(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert DAEMON not in pyspark_ckpt.configure(builder.master("spark://host:7077"))._options


def test_master_of_the_environment_counts_when_the_builder_names_none(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    assert PREFIX + "ckpt.python" not in pyspark_ckpt.configure(builder)._options


@pytest.mark.parametrize(("key", "value"), [("memoryLimt", "1g"), ("memoryLimit", "much"), ("compression", "rar")])
def test_configure_names_the_option_when_it_is_wrong(builder: SparkSession.Builder, key: str, value: str) -> None:
    builder.config(PREFIX + "ckpt." + key, value)
    with pytest.raises(pyspark_ckpt.InvalidInputError, match=PREFIX + "ckpt." + key):
        pyspark_ckpt.configure(builder)


def test_configure_leaves_the_builder_alone_when_it_refuses(builder: SparkSession.Builder) -> None:
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="memoryLimit"):
        pyspark_ckpt.configure(builder, memory_limit="much")
    assert builder._options == {}


@pytest.mark.parametrize("by_environment", [True, False])
def test_configure_refuses_a_connect_client(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch, *, by_environment: bool
) -> None:
    if by_environment:
        monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    else:
        builder.remote("sc://host")
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="Connect"):
        pyspark_ckpt.configure(builder)


def test_jar_path_says_what_to_do_when_the_package_lacks_jar_and_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(finding, "_HERE", tmp_path)
    with pytest.raises(pyspark_ckpt.NotFoundError, match="Install the package again"):
        session.jar_path()


def test_every_place_names_the_same_versions_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, end = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    versions = [f"3.{minor}" for minor in range(oldest, end)]
    shim = ROOT / "jvm-bridge/src/main/scala/org/apache/spark/sql/ckpt/server/ServerProcess.scala"
    named = {
        "pyproject.toml": re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])),
        "test.yml": re.findall(
            r"\b3\.\d+", re.findall(r"python: .*", (ROOT / ".github/workflows/test.yml").read_text())[0]
        ),
    }
    assert named == dict.fromkeys(named, versions)
    assert f", {versions[0]} to {versions[-1]} with 4.0 to 4.2, " in (ROOT / "README.md").read_text()
    assert f"(3, {oldest}) <= sys.version_info < (3, {end})" in (ROOT / "Makefile").read_text()
    assert f"needs Python {versions[0]} or newer" in shim.read_text()


def test_a_public_name_is_the_same_whenever_it_is_used() -> None:
    for name in vars(pyspark_ckpt)["__all__"]:
        first = getattr(pyspark_ckpt, name)
        assert getattr(pyspark_ckpt, name) is first, f"the module of {name} hides it"
