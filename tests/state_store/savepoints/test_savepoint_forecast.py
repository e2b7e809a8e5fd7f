"""``--explain`` counts the rows that each new partition will have, and they come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.verification import verify_version
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.restoring.request import RestoreRequest
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.compat.frozen import unpack
from tests.labs import saved_query
from tests.labs.saved_query import Query

HOT = 12345
SPARKS = "keyed", "default"


@pytest.fixture
def query(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    """Half of all rows are of one hash, as those of one key of a join are."""

    def hash_for(operator: int, key: bytes) -> int:
        found = xxhash.xxh32_intdigest(key)
        return 42 if operator == 1 else HOT if found % 2 else found

    monkeypatch.setattr(saved_query, "hash_for", hash_for)
    query = Query(str(quick_path / "query"), 3)
    query.run(3, rows=100)
    return query


def explained(capsys: pytest.CaptureFixture[str], *command: str) -> dict[int, list[int]]:
    """Expected rows by operator; all are reported as counted, except of operators with one partition."""
    capsys.readouterr()
    assert main([*command, "--dry-run", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [each["is_counted"] for each in told["operators"]] == [True, False, True]
    return {each["operator"]: each["expected_rows"] for each in told["operators"]}


def rows_of(location: str, partitions: int) -> dict[int, list[int]]:
    """Rows by operator and partition, but for those that Spark has of partitions; each is read."""
    checkpoint = Checkpoint(location, parse({}))
    found: dict[int, list[int]] = {}
    for operator, identity in checkpoint.stores():
        rows = found.setdefault(operator.number, [0] * (1 if operator.number == 1 else partitions))
        digests = verify_version(checkpoint, identity, checkpoint.newest_version).digests
        left_out = "default" if operator.number == 2 else ""
        rows[identity.partition] += sum(each.rows for name, each in digests.items() if name != left_out)
    return found


@pytest.mark.parametrize("partitions", [1, 4, 7])
def test_rows_of_new_partitions_are_as_many_as_were_predicted(
    partitions: int, query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(quick_path / "new")
    told = explained(capsys, "checkpoint", "rescale", query.location, target, "-n", str(partitions))
    assert not Path(target).exists()
    savepoints.restore(query.location, target, parallelism=partitions)
    assert told == rows_of(target, partitions)
    for operator in (0, 2):
        assert partitions == 1 or max(told[operator]) > 0.5 * sum(told[operator])


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_rows_of_a_savepoint_are_counted(
    kind: Kind, query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, target = str(quick_path / "taken"), str(quick_path / "new")
    savepoints.savepoint(query.location, taken, kind=kind)
    told = explained(capsys, "savepoint", "restore", taken, target, "-n", "4")
    savepoints.restore(taken, target, parallelism=4)
    assert told == rows_of(target, 4)
    assert main(["savepoint", "restore", taken, f"{target}-2", "-n", "4", "--dry-run"]) == 0
    assert "rows with indexes of each new partition of operator 0, counted" in capsys.readouterr().out


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["join", "session-windows", "keyed"])
def test_rows_that_spark_has_written_are_counted(name: str, tmp_path: Path) -> None:
    checkpoint = str(unpack("v1", name, tmp_path / "old"))
    found = Checkpoint(checkpoint, parse({}))
    restoration = savepoints.plan_restore(found, "/new", RestoreRequest(5), parse({}))
    (operator,) = savepoints.explain(restoration, counts=True).operators
    savepoints.restore(checkpoint, str(tmp_path / "new"), parallelism=5)
    new = Checkpoint(str(tmp_path / "new"), parse({}))
    rows = [0] * 5
    for _, identity in new.stores():
        digests = verify_version(new, identity, new.newest_version).digests
        rows[identity.partition] += sum(each.rows for state, each in digests.items() if (name, state) != SPARKS)
    assert list(operator.expected_rows) == rows
    assert operator.rows == sum(rows)


def test_nothing_is_read_to_explain_a_restore_quickly(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["checkpoint", "rescale", query.location, str(quick_path / "new"), "-n", "4", "--dry-run"]
    for path in Path(query.location, "state", "0").rglob("*.delta"):
        path.write_bytes(path.read_bytes().replace(b"key-", b"yek-"))
    assert main([*command, "--quick"]) == 0
    assert "rows with indexes of each new partition of operator 0, if they are spread evenly" in capsys.readouterr().out
    assert main(command) == 1
    assert ".delta is damaged" in capsys.readouterr().err
    with pytest.raises(FormatError):
        savepoints.restore(query.location, str(quick_path / "new"), parallelism=4)
