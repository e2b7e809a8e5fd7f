"""What differs between two versions of a state, whatever the number of partitions: as plain dicts say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import adopt
from pyspark_ckpt.reading import diff, open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from tests.compat.frozen import unpack
from tests.offline.adopting.written import unpack_all


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


@pytest.mark.in_turn
@pytest.mark.parametrize("partitions", [3, 1, 7])
def test_an_aggregation_differs_as_its_rows_do(partitions: int, adopted: Path, tmp_path: Path) -> None:
    later, earlier = adopted / "ours-hdfs", adopted / "ours-rocksdb"
    other = tmp_path / "rescaled"
    restore(earlier, other, parallelism=partitions)
    expected = _expected(_rows(other), _rows(later))
    assert len(expected) > 20
    assert _shown(other, later) == expected
    assert _shown(earlier, other) == _shown(later, later) == {}
    savepoint(other, tmp_path / "saved", kind="canonical")
    assert _shown(tmp_path / "saved", later) == expected
    assert _shown(later, tmp_path / "saved") == _expected(_rows(later), _rows(other))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["keyed", "join", "session-windows", "with-states"])
def test_every_kind_of_state_differs_between_two_versions_as_its_rows_do(name: str, tmp_path: Path) -> None:
    checkpoint = unpack("v1", name, tmp_path / "query")
    restore(checkpoint, tmp_path / "rescaled", parallelism=3)
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
    with pytest.raises(InvalidInputError, match="4 states for"):
        diff(adopted / "ours-hdfs", join, operator=0, state=some.stored_name)
    with pytest.raises(InvalidInputError, match="no state for uid 'nobody'"):
        diff(adopted / "ours-hdfs", join, uid="nobody")
    for wrong in ({"uid": 5}, {"uid": ["u"]}, {"operator": "0"}, {"state": b"s"}):
        with pytest.raises(InvalidInputError, match="must be"):
            diff(join, join, **wrong)
    with pytest.raises(InvalidInputError, match="has no version 99"):
        diff(join, join, version_b=99)


class _Noted(ckpt.KeyedProcessor):
    n = ckpt.ValueState("n", "struct<n: long>")
    log = ckpt.ListState("log", "binary")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.n.update((row.n,))
            self.log.add(bytes([row.n]) * row.size)
        yield from ()


class _NotedLater(_Noted):
    n = ckpt.ValueState("n", "struct<n: long, more: string>")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.n.update((row.n, None))
        yield from ()


def _harness(processor: ckpt.KeyedProcessor, folder: Path) -> ckpt.testing.Harness:
    stream = ckpt.testing.keyed("k string, n int, size int", by="k", uid="u", parallelism=2, folder=folder)
    return stream.process(processor, "k string")


def test_values_that_are_written_again_by_a_newer_type_are_equal(tmp_path: Path) -> None:
    with _harness(_Noted(), tmp_path / "query") as harness:
        harness.run([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)])
        checkpoint = harness.checkpoint
    with _harness(_NotedLater(), tmp_path / "query") as harness:
        harness.run([("d", 4, 1)])
        harness.run([("a", 1, 1), ("b", 9, 1)])
    with diff(checkpoint, checkpoint, uid="u", state="n", version_a=2) as differences:
        shown = [(row["key"]["k"], row["side"], row["value"]["n"]) for row in differences.to_arrow().to_pylist()]
        assert len(differences.to_pandas()) == 2
    assert shown == [("b", "a", 2), ("b", "b", 9)]


def test_all_rows_are_of_one_side_if_the_other_has_no_such_state(tmp_path: Path) -> None:
    with _harness(_Noted(), tmp_path / "query") as harness:
        harness.run([])
        harness.run([("a", 1, 1), ("b", 2, 1)])
        checkpoint = harness.checkpoint
    with _harness(_Noted(), tmp_path / "empty") as harness:
        harness.run([])
        for a, b, change in ((harness.checkpoint, checkpoint, "added"), (checkpoint, harness.checkpoint, "removed")):
            with diff(a, b, uid="u", state="n") as differences:
                assert [row["change"] for row in differences.to_arrow().to_pylist()] == [change] * 2


def test_large_values_are_compared_too(tmp_path: Path) -> None:
    with _harness(_Noted(), tmp_path / "query") as harness:
        harness.run([(f"{key}", 1, 1 << 20) for key in range(40)])
        harness.run([(f"{key}", 2, 1 << 20) for key in range(0, 40, 2)])
        with diff(harness.checkpoint, harness.checkpoint, uid="u", state="log", version_a=1) as differences:
            rows = sum(batch.num_rows for batch in differences.batches())
    assert rows == 20  # elements that were added; the heads of their lists have changed and are not shown


def test_between_two_versions_only_keys_that_commits_name_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _harness(_Noted(), tmp_path / "query") as harness:
        harness.run([(f"{key}", 1, 1) for key in range(100)])
        harness.run([("7", 1, 1), ("8", 2, 1)])
        with monkeypatch.context() as patched:
            patched.setattr(
                "pyspark_ckpt.offline.reading.differences._read", lambda *_: pytest.fail("it reads all rows")
            )
            with diff(harness.checkpoint, harness.checkpoint, uid="u", state="n", version_a=1) as differences:
                assert [row["key"]["k"] for row in differences.to_arrow().to_pylist()] == ["8", "8"]
            with diff(harness.checkpoint, harness.checkpoint, uid="u", state="n", version_b=1) as differences:
                assert [row["side"] for row in differences.to_arrow().to_pylist()] == ["a", "b"]
        (delta,) = harness.checkpoint.glob("state/0/0/00000000000000000002-*.delta")
        delta.rename(delta.with_suffix(".lost"))
        with (
            pytest.raises(CkptError),
            diff(harness.checkpoint, harness.checkpoint, uid="u", version_a=1, state="n") as lost,
        ):
            lost.to_arrow()


@pytest.mark.in_turn
def test_what_savepoints_have_recorded_as_equal_is_not_read(tmp_path: Path) -> None:
    checkpoint = unpack("v1", "keyed", tmp_path / "query")
    restore(checkpoint, tmp_path / "rescaled", parallelism=3)
    for name, source in (("a", checkpoint), ("b", tmp_path / "rescaled")):
        savepoint(source, tmp_path / name, kind="canonical")
    files = list((tmp_path / "b" / "rows").glob("**/*.parquet"))
    contents = {path: path.read_bytes() for path in files}
    for path in files:
        path.write_bytes(b"")
    with open_state(tmp_path / "a") as opened:
        states = [{"uid": each.uid, "state": each.name} for each in opened.states if each.uid is not None]
    for which in states:
        assert _shown(tmp_path / "a", tmp_path / "b", **which) == {}
    changed = tmp_path / "changed"
    which = next(each for each in states if each["state"])
    ckpt.writing.write_state(
        tmp_path / "a", changed, [ckpt.writing.Transform(which["uid"], which["state"], lambda rows: rows[1:])]
    )
    with pytest.raises(CkptError):
        _shown(tmp_path / "b", changed, **which)
    for path, content in contents.items():
        path.write_bytes(content)
    assert len(_shown(tmp_path / "b", changed, **which)) == 1
