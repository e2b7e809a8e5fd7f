"""What differs between two versions of a state, whatever the number of partitions: as plain dicts say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import adopt, diff, open_state, rescale, savepoint
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.adoption.written import unpack_all
from tests.compat.frozen import unpack


def _rows(checkpoint: Path, version: int | None = None, **which: Any) -> dict[str, list[str]]:  # noqa: ANN401
    """The rows of a state, by their keys."""
    found: dict[str, list[str]] = {}
    with open_state(checkpoint, version=version, **which) as state:
        table = state.to_arrow().drop_columns(["partition", "key_group", "hash"])
        for row in table.to_pylist():
            found.setdefault(repr(row["key"]), []).append(repr(row))
    return found


def _shown(a: Path, b: Path, **which: Any) -> dict[str, dict[str, list[str]]]:  # noqa: ANN401
    """What differs, by key and by side."""
    found: dict[str, dict[str, list[str]]] = {}
    with diff(a, b, **which) as differences:
        for row in differences.to_arrow().to_pylist():
            side, change = row.pop("side"), row.pop("change")
            assert change == "changed" or side == {"removed": "a", "added": "b"}[change]
            found.setdefault(repr(row["key"]), {}).setdefault(side, []).append(repr(row))
    return found


def _expected(a: dict[str, list[str]], b: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for key in {*a, *b}:
        old, new = a.get(key, []), b.get(key, [])
        sides = {"a": [row for row in old if row not in new], "b": [row for row in new if row not in old]}
        if any(sides.values()):
            found[key] = {side: rows for side, rows in sides.items() if rows}
    return found


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of an aggregation after different batches."""
    folder = unpack_all("4.3", tmp_path_factory.mktemp("spark"))
    for form in ("hdfs", "rocksdb"):
        adopt(folder / form, folder / f"ours-{form}")
    return folder


@pytest.mark.parametrize("partitions", [3, 1, 7])
def test_an_aggregation_differs_as_its_rows_do(partitions: int, adopted: Path, tmp_path: Path) -> None:
    later, earlier = adopted / "ours-hdfs", adopted / "ours-rocksdb"
    other = tmp_path / "rescaled"
    rescale(earlier, other, partitions)
    expected = _expected(_rows(other), _rows(later))
    assert len(expected) > 20
    assert _shown(other, later) == expected
    assert _shown(earlier, other) == _shown(later, later) == {}
    savepoint(other, tmp_path / "saved", kind="canonical")
    assert _shown(tmp_path / "saved", later) == expected
    assert _shown(later, tmp_path / "saved") == _expected(_rows(later), _rows(other))


@pytest.mark.parametrize("name", ["keyed", "join", "session-windows", "with-states"])
def test_every_kind_of_state_differs_between_two_versions_as_its_rows_do(name: str, tmp_path: Path) -> None:
    checkpoint = unpack("v1", name, tmp_path / "query")
    rescale(checkpoint, tmp_path / "rescaled", 3)
    with open_state(checkpoint) as opened:
        newest = opened.version
        states: list[dict[str, Any]] = [
            {"operator": each.operator.number, "store": each.store, "state": each.stored_name}
            for each in opened.states
            if each.uid is not None or name != "keyed"  # Spark's own rows of a keyed operator are of its partitions
        ]
    shown = 0
    for which in states:
        now = _rows(checkpoint, **which)
        assert _shown(checkpoint, tmp_path / "rescaled", **which) == {}
        for version in range(max(1, newest - 2), newest):
            expected = _expected(_rows(checkpoint, version, **which), now)
            assert _shown(checkpoint, checkpoint, version_a=version, **which) == expected
            assert _shown(checkpoint, tmp_path / "rescaled", version_a=version, **which) == expected
            shown += len(expected)
    assert shown > 0


def test_the_command_shows_both_values(adopted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later, earlier = str(adopted / "ours-hdfs"), str(adopted / "ours-rocksdb")
    assert main(["state", "diff", later, later]) == 0
    assert "The state is the same on both sides." in capsys.readouterr().err
    assert main(["state", "diff", earlier, later, "--format", "json", "--limit", "5"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 5
    assert {row["change"] for row in rows} <= {"removed", "added", "changed"}
    assert main(["state", "diff", earlier, later]) == 1
    assert "removed" in capsys.readouterr().out


def test_states_that_cannot_be_compared_are_refused(adopted: Path, tmp_path: Path) -> None:
    join = unpack("v1", "join", tmp_path / "join")
    with open_state(join) as opened:
        some = opened.states[0]
    with (
        diff(adopted / "ours-hdfs", join, operator=0, state=some.stored_name) as differences,
        pytest.raises(InvalidInputError),
    ):
        differences.to_arrow()
    with pytest.raises(InvalidInputError, match="has no version 99"):
        diff(join, join, version_b=99)
