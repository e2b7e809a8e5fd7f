"""What earlier releases wrote is read as it was, and queries continue from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.display import count_text
from tests.compat import frozen_processors as processors
from tests.compat.contents import digests
from tests.compat.frozen import HERE, SUMS, VERSIONS, expected, sums, unpack
from tests.compat.stores import commit_next, rows_of
from tests.labs.lab import Lab

STORES = [(version, name) for version in VERSIONS for name in expected(version)["stores"]]
QUERIES = [(version, name) for version in VERSIONS for name in expected(version)["queries"]]


def test_every_released_format_is_here() -> None:
    assert VERSIONS == ["spark-3.5", "spark-4.0", "spark-4.1", "spark-4.2", "v1"]
    assert processors.VERSIONS == ["spark-4.0", "spark-4.1", "spark-4.2", "spark-4.3"]


@pytest.mark.parametrize("name", [*VERSIONS, *(f"{processors.PROCESSORS}/{each}" for each in processors.VERSIONS)])
def test_nothing_that_is_frozen_has_changed(name: str) -> None:
    """A test that fails here is never mended by a new list: what was changed is put back."""
    assert sums(HERE / name) == (HERE / name / SUMS).read_text(encoding="ascii")


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    """A frozen store, and what its versions hold."""
    version, name = request.param
    unpack(version, name, tmp_path / "checkpoint")
    made = Lab(tmp_path)
    made.partition = 0
    yield made, expected(version)["stores"][name]
    made.server.stores.shut_down()


@pytest.mark.parametrize("lab", STORES, indirect=True, ids=str)
def test_every_version_of_a_store_has_the_rows_it_had(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
    lab, versions = lab
    for version, rows in versions.items():
        lab.restart(lose_local=True)
        assert rows_of(lab, int(version), run="reader") == rows
        count = sum(map(len, rows.values()))
        assert main(["checkpoint", "verify", str(lab.checkpoint), "--version", version]) == 0
        assert f"1 store, {count_text(count, 'row')}" in capsys.readouterr().out


@pytest.mark.parametrize("lab", STORES, indirect=True, ids=str)
def test_a_store_goes_on_from_its_last_version(lab: Any) -> None:  # noqa: ANN401
    lab, versions = lab
    last = max(map(int, versions))
    rows, commit_id = commit_next(lab, last, versions[str(last)])
    lab.restart(lose_local=True)
    handle = lab.open(run="reader")
    lab.server.call("begin", handle=handle, version=last + 1, id=commit_id)
    assert lab.server.call("snapshot", handle=handle, force=True)["version"] == last + 1
    lab.log_commit(last, [commit_id])
    lab.restart(lose_local=True)
    assert rows_of(lab, last + 1) == rows
    assert rows_of(lab, last) == versions[str(last)]


@pytest.mark.parametrize(("version", "name"), QUERIES)
def test_the_checkpoint_of_a_query_holds_what_it_held(
    version: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = unpack(version, name, tmp_path / "checkpoint")
    assert digests(checkpoint) == expected(version)["queries"][name]["stored"]
    for command in ("list", "inspect", "verify"):
        assert main(["checkpoint", command, str(checkpoint)]) == 0
    assert "all right" in capsys.readouterr().out
