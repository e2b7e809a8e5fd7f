"""What users see with each release of PySpark. Older ones are imitated: what they lack is taken away."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, types

import pyspark_ckpt
from pyspark_ckpt import pyspark_releases, session
from pyspark_ckpt.jars import finding
from pyspark_ckpt.operators.types.ddl import read_type
from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.state_store.errors import InvalidInputError

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
EXTENSIONS = "spark.sql.extensions"
OURS = "org.apache.spark.sql.ckpt.plan.Extensions"
MINORS = ("3.5", "4.0", "4.1", "4.2", "4.3")


@pytest.fixture(autouse=True)
def jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a jar for each release, and with the sources."""
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "sources").symlink_to(Path(finding.__file__).with_name("sources"))
    for minor in MINORS:
        (folder / f"pyspark-ckpt-spark-{minor}.jar").touch()
    monkeypatch.setattr(finding, "_HERE", folder)
    monkeypatch.setattr(session, "_jvm_is_running", lambda: False)
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def install(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    """Have PySpark say that it is this release."""
    monkeypatch.setattr("pyspark.version.__version__", release)


@pytest.mark.parametrize(
    ("minor", "rest"),
    [each for each in product(MINORS, [".0", ".1", ".9", ".0.dev1"]) if "".join(each) != "4.0.0"],  # which is refused
)
def test_the_jar_is_that_of_the_installed_release(
    minor: str, rest: str, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, minor + rest)
    assert pyspark_ckpt.session.jar_path() == str(jars / f"pyspark-ckpt-spark-{minor}.jar")


@pytest.mark.parametrize("release", ["3.4.4", "4.4.0"])
def test_a_release_without_a_jar_is_refused_with_those_that_have_one(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, release)
    with pytest.raises(InvalidInputError) as refused:
        pyspark_ckpt.session.spark_conf()
    assert f"PySpark {release} is installed, but this pyspark-ckpt is for Spark 3.5, 4.0, 4.1, 4.2, 4.3." in str(
        refused.value
    )


def test_a_patch_that_lacks_classes_of_its_jar_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "4.0.0")
    with pytest.raises(InvalidInputError, match=r"PySpark 4\.0\.0 .* Install a later patch of Spark 4\.0\."):
        pyspark_ckpt.session.spark_conf()


@pytest.mark.parametrize("minor", MINORS)
def test_a_session_has_the_settings_that_its_release_knows(minor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, f"{minor}.1")
    conf = pyspark_ckpt.session.spark_conf()
    assert conf.get(FORMAT) == (None if minor in ("3.5", "4.0") else "2")
    assert conf.get(EXTENSIONS) == (OURS if minor == "3.5" else None)


def test_extensions_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.5.9")
    builder = _builder({EXTENSIONS: "a.B, c.D"})
    assert pyspark_ckpt.configure(pyspark_ckpt.configure(builder))._options[EXTENSIONS] == f"a.B,c.D,{OURS}"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {EXTENSIONS}=a.B pyspark-shell")
    assert pyspark_ckpt.configure(_builder({}))._options[EXTENSIONS] == f"a.B,{OURS}"


def test_the_jar_for_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.5.9")
    other, refusal = "file:/opt/pyspark-ckpt-spark-4.3.jar", r"is for another Spark: PySpark 3\.5\.9 is installed"
    with pytest.raises(InvalidInputError, match=rf"The session would load {other}, which {refusal}"):
        pyspark_ckpt.configure(_builder({"spark.jars": f"a.jar,{other}"}))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {other} pyspark-shell")
    with pytest.raises(InvalidInputError, match=refusal):
        pyspark_ckpt.configure(_builder({}))


def test_checkpoint_format_2_is_refused_before_spark_4(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.5.9")
    with pytest.raises(InvalidInputError, match=r"checkpointFormatVersion=2 needs Spark 4\.0 or newer"):
        pyspark_ckpt.configure(_builder({FORMAT: 2}))
    assert pyspark_ckpt.configure(_builder({FORMAT: 1}))._options[FORMAT] == "1"


def test_what_pyspark_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.5.9")
    monkeypatch.setattr(pyspark_releases, "find_spec", lambda _: None)
    stream = pyspark_ckpt.testing.keyed("user string, n bigint", by="user", uid="it")
    nothing: Any = None
    for method in ("transform_with_state", "transform_with_state_in_pandas"):
        with pytest.raises(InvalidInputError) as refused:
            getattr(stream, method)(nothing, "n bigint", "update", "None")
        assert f".{method}() needs Spark 4.0 or newer, and PySpark 3.5.9 is installed." in str(refused.value)
    with pytest.raises(
        InvalidInputError, match=r"pyspark_ckpt\.reading\.register_state_source needs Spark 4\.0 or newer"
    ):
        _ = pyspark_ckpt.reading.register_state_source
    name = "DefaultSource"  # Spark asks for it, and no stub has it
    monkeypatch.setitem(sys.modules, "pyspark_ckpt.state_source", None)  # it cannot be imported there
    with pytest.raises(InvalidInputError, match=r"pyspark_ckpt\.DefaultSource needs Spark 4\.0 or newer"):
        getattr(pyspark_ckpt, name)


@pytest.mark.parametrize(
    ("ddl", "lacks", "needs"),
    [
        ("variant", "VariantType", r"VariantType needs Spark 4\.0"),
        ("at time(3)", "TimeType", r"TimeType needs Spark 4\.1"),
    ],
)
def test_a_type_that_pyspark_lacks_is_refused_by_name(
    ddl: str, lacks: str, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(read_type(ddl.removeprefix("at "))).__name__ == lacks
    monkeypatch.delattr(types, lacks)
    with pytest.raises(InvalidInputError, match=needs):
        resolve_type(ddl, "The state")


def test_the_frame_of_a_connect_client_is_refused_where_it_is_of_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.5.9")
    frame: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(
        InvalidInputError, match=r"keyed\(uid='it'\) in a Spark Connect client needs Spark 4\.0 or newer"
    ):
        pyspark_ckpt.keyed(frame, by="user", uid="it")


def _builder(options: dict[str, Any]) -> SparkSession.Builder:
    builder = SparkSession.Builder()
    builder._options = dict(options)
    return builder
