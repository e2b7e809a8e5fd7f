"""What cannot work is refused at once and by name."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import pyspark_ckpt
from integration.crash.driver import OPTIONS, Driver, OrderFailedError
from integration.crash.reference import order

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A session in which nothing has run yet."""
    with Driver(tmp_path_factory.mktemp("refusals"), "local[2]") as started:
        yield started


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without the package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("memoryLimt", "1g", f"{OPTIONS}memoryLimt"),
        ("snapshotEveryVersions", "0", f"{OPTIONS}snapshotEveryVersions has the value '0'"),
        ("compression", "gzip", f"{OPTIONS}compression has the value 'gzip'"),
    ],
)
def test_query_does_not_start_when_an_option_is_wrong(
    key: str, value: str, words: str, driver: Driver, tmp_path: Path
) -> None:
    with pytest.raises(OrderFailedError) as refused:
        driver.run(order("windows", tmp_path, conf={f"{OPTIONS}{key}": value}, until=1))
    assert words in str(refused.value)
    assert "InvalidInputError" in str(refused.value)
    assert driver.state_servers() == []


def test_query_runs_in_the_same_session_when_the_options_are_right_again(driver: Driver, tmp_path: Path) -> None:
    said = driver.run(order("windows", tmp_path, until=2), order("dedup", tmp_path, until=2))
    assert all(any(name.startswith("ckpt") for name in each["metrics"]) for each in said)
    assert len(list((tmp_path / "windows" / "output").iterdir())) == len(range(2))


def test_query_fails_with_what_to_do_when_the_python_lacks_the_package(
    driver: Driver, bare_python: Path, tmp_path: Path
) -> None:
    driver.lose_local_state()
    wrong = {f"{OPTIONS}python": str(bare_python)}
    with pytest.raises(OrderFailedError) as refused:
        driver.run(order("windows", tmp_path, conf=wrong, until=1))
    assert "Install pyspark-ckpt into that Python on every executor" in str(refused.value)
    assert str(bare_python) in str(refused.value)


def test_query_fails_with_what_to_do_when_the_python_is_not_there(driver: Driver, tmp_path: Path) -> None:
    driver.lose_local_state()
    wrong = {f"{OPTIONS}python": str(tmp_path / "python")}
    with pytest.raises(OrderFailedError) as refused:
        driver.run(order("windows", tmp_path, conf=wrong, until=1))
    assert f"Set {OPTIONS}python" in str(refused.value)
    assert "ProcessError" in str(refused.value)


def test_query_runs_in_the_same_session_when_the_python_is_mended(driver: Driver, tmp_path: Path) -> None:
    driver.lose_local_state()
    wrong = {f"{OPTIONS}python": str(tmp_path / "python")}
    with pytest.raises(OrderFailedError):
        driver.run(order("windows", tmp_path, conf=wrong, until=1))
    driver.run(order("dedup", tmp_path, conf={f"{OPTIONS}python": sys.executable}, until=1))


@pytest.mark.in_turn
def test_calls_say_what_to_do_when_a_session_without_the_jar_runs(
    user_environment: Mapping[str, str], tmp_path: Path
) -> None:
    code = (
        "from pyspark.sql import SparkSession; import pyspark_ckpt\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "events = spark.readStream.format('rate').load()\n"
        "class Nothing(pyspark_ckpt.KeyedProcessor):\n    def process(self, ctx, key, rows): return ()\n"
        "try:\n    pyspark_ckpt.keyed(events, by='value', uid='it').process(Nothing(), output='value long')\n"
        "except pyspark_ckpt.InvalidInputError as error:\n    print('not keyed:', error)\n"
        "query = events.writeStream.format('noop').option('checkpointLocation', 'checkpoint').start()\n"
        "query.processAllAvailable()\n"
        "try:\n    pyspark_ckpt.stop_with_savepoint(query, 'savepoint')\n"
        "except pyspark_ckpt.InvalidInputError as error:\n    print('not stopped:', error, query.isActive)\n"
        "query.stop()\n"
        "try:\n    pyspark_ckpt.configure(SparkSession.builder)\n"
        "except pyspark_ckpt.LifecycleError as error:\n    print('refused:', error)\n"
        "spark.stop()\n"
        "pyspark_ckpt.configure(SparkSession.builder)\n"
        "print('accepted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(user_environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    has_none = "The session does not have the jar of pyspark-ckpt, or its extensions. Call pyspark_ckpt.configure("
    assert f"not keyed: {has_none}" in done.stdout
    assert f"not stopped: {has_none}" in done.stdout
    assert "pyspark_ckpt.attach(spark) for a running one" in done.stdout
    assert "when it starts. True\n" in done.stdout  # the query still runs
    assert f"--jars {pyspark_ckpt.session.jar_path()}" in done.stdout
    assert "accepted" in done.stdout
