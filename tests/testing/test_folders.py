"""The folders of harnesses: what goes on after a restart and from a savepoint, and whose a folder is."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.saved_query import Query
from tests.testing.programs import AT, OUTPUT, ROWS, Sessions, Totals, after, stream


def test_a_restart_changes_nothing() -> None:
    with stream(watermark=("at", "1 minute"), parallelism=2).process(Sessions(), OUTPUT, "append") as harness:
        for minute in range(12):
            harness.run([("ada", 1, after(minute)), ("bob", 1, after(minute - 0.5))])
        harness.restart()
        assert harness.run([("cy", 1, after(21.7))]) == []
        assert harness.run() == [("bob", 12)]
        harness.restart()
        assert harness.advance_watermark(after(21)) == [("ada", 12)]


class Renamed(Totals):
    """A fixed program: it outputs ten times the total."""

    def process(self, ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs ten times the total."""
        for user, total in super().process(ctx, key, rows):
            yield user, total * 10


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_goes_on_in_another_program_at_another_parallelism(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with stream(parallelism=2, uid="totals").process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
        harness.savepoint(tmp_path / "savepoint", kind=kind)
        harness.run(ROWS)
    moved = stream(parallelism=5, uid="totals", savepoint=tmp_path / "savepoint", folder=tmp_path / "new")
    with moved.process(Renamed(), OUTPUT) as harness:
        assert harness.state("total") == {("ada",): 3, ("bob",): 5}
        assert sorted(harness.run(ROWS)) == [("ada", 60), ("bob", 100)]
    again = stream(parallelism=5, uid="totals", folder=tmp_path / "new")
    with again.process(Renamed(), OUTPUT) as harness:
        assert harness.run([("ada", 1, AT)]) == [("ada", 70)]


def test_a_timer_survives_the_savepoint(tmp_path: Path) -> None:
    with stream(watermark=("at", "1 minute")).process(Sessions(), OUTPUT, "append") as harness:
        harness.run(ROWS)
        harness.savepoint(tmp_path / "savepoint")
    moved = stream(watermark=("at", "1 minute"), parallelism=3, savepoint=tmp_path / "savepoint")
    with moved.process(Sessions(), OUTPUT, "append") as harness:
        assert harness.watermark == after(-1)
        assert sorted(harness.advance_watermark("1 hour")) == [("ada", 2), ("bob", 1)]


def test_a_program_that_cannot_have_the_states_is_refused(tmp_path: Path) -> None:
    with stream(folder=tmp_path).process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
    changed = stream(folder=tmp_path, watermark=("at", "1 minute"))
    with (
        changed.process(Sessions(), OUTPUT) as harness,
        pytest.raises(
            InvalidInputError,
            match=r"operator 0 of the query, declares .*, but the checkpoint has state",
        ),
    ):
        harness.run(ROWS)


def test_a_folder_keeps_its_parallelism(tmp_path: Path) -> None:
    with stream(folder=tmp_path, parallelism=2).process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
    with pytest.raises(InvalidInputError, match="has 2 partitions, but the harness has the parallelism 3"):
        stream(folder=tmp_path, parallelism=3).process(Totals(), OUTPUT)


def test_the_savepoint_of_a_query_with_other_operators_is_refused(tmp_path: Path) -> None:
    query = Query(str(tmp_path / "checkpoint"), 2)
    query.run(2)
    with pytest.raises(InvalidInputError, match="has the stateful operators 0: symmetricHashJoin, 1: stateStoreSave"):
        stream(folder=tmp_path, parallelism=2).process(Totals(), OUTPUT)


def test_two_harnesses_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        stream(folder=tmp_path).process(Totals(), OUTPUT),
        pytest.raises(ckpt.LifecycleError, match="Another harness uses"),
    ):
        stream(folder=tmp_path).process(Totals(), OUTPUT)


@pytest.mark.parametrize("order", [0, 1])
def test_a_folder_belongs_to_one_harness_also_after_a_restart(order: int, tmp_path: Path) -> None:
    with stream(folder=tmp_path).process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
        harness.restart()
        for _ in range(order):
            harness.run(ROWS)
        with pytest.raises(ckpt.LifecycleError, match="Another harness uses"):
            stream(folder=tmp_path).process(Totals(), OUTPUT)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint", "owner"]
    with stream(folder=tmp_path).process(Totals(), OUTPUT) as harness:
        assert harness.run([("bob", 1, AT)]) == [("bob", 6 + 5 * order)]


def test_what_fails_to_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(InvalidInputError):
        stream(savepoint=tmp_path / "nothing").process(Totals(), OUTPUT)
    assert list(tmp_path.iterdir()) == []
    harness = stream().process(Totals(), OUTPUT)
    harness.run(ROWS)
    del harness  # nobody closes it
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_be_relative_to_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in (("ada", 3), ("ada", 6)):
        with stream(folder="kept").process(Totals(), OUTPUT) as harness:
            assert expected in harness.run(ROWS)
            assert harness.checkpoint.is_absolute()
    assert (tmp_path / "kept" / "checkpoint").is_dir()
