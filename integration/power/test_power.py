"""A loss of power leaves all that was acknowledged, at any moment, and whatever a file system makes of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

import pyspark_ckpt as ckpt
from integration.line_files import write_files
from integration.power.crash_states import Disk, Tree, digest, write
from integration.power.query import Settings, run
from integration.power.recording import Operation, can_record, read, record
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_savepoint_kind
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from tests.labs.saved_query import SAVEPOINT_KINDS, stored, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.in_turn,
    pytest.mark.skipif(not can_record(), reason="NOT RUN: needs strace."),
]

FILES = 8
KEYS = 5
FORMATS = (1, 2)
STATES = int(os.environ.get("CKPT_POWER_STATES", "120"))
"""How many states of each run are looked at; 0 means all."""
STARTED = int(os.environ.get("CKPT_POWER_STARTED", "60"))
"""The query goes on from one in so many states."""
T = TypeVar("T")


def _write_lines(folder: Path) -> list[Counter[str]]:
    """Write the files, in the order in which Spark reads them; return the counts after each batch, none first."""
    files = [[f"key {(number * each) % KEYS}" for each in range(1, 3 + number % 3)] for number in range(FILES)]
    write_files(folder, files)
    return list(accumulate(map(Counter, files), initial=Counter[str]()))


def _states(operations: Sequence[Operation], disk: Disk, acknowledged: Path) -> Iterator[tuple[int, Tree]]:
    """Return each state that a loss of power may leave once, with the number of batches acknowledged by then."""
    batches, done = 0, list[tuple[int, Operation]]()
    for operation in operations:
        if not operation.path.startswith(f"{acknowledged}/"):
            done.append((batches, operation))
        elif operation.kind == "create":
            batches = max(batches, int(Path(operation.path).name))
    return _each_once(done, disk)


def _each_once(operations: Sequence[tuple[T, Operation]], disk: Disk) -> Iterator[tuple[T, Tree]]:
    """Yield each state that a loss of power may leave after an operation once, with what is known of that."""
    seen = set[tuple[T, bytes]]()
    for known, operation in operations:
        disk.apply(operation)
        for tree in disk.states():
            if (found := (known, digest(tree))) not in seen:
                seen.add(found)
                yield known, tree


def _require_whole(checkpoint: Path, batches: int, counts: Sequence[Counter[str]]) -> None:
    """Fail unless a query that starts here goes on after ``batches`` or more, with the right state."""
    place = place_at(str(checkpoint))
    committed = max(list_batches(place, "commits"), default=-1) + 1
    assert committed >= batches, f"{batches} batches were acknowledged, {committed} are committed"
    if not (checkpoint / "metadata").exists():  # a query begins anew, as it did
        assert committed == 0
        return
    _run("checkpoint", "verify", str(checkpoint))
    if committed:
        assert _read_state(checkpoint) == dict(counts[committed])


def _read_state(checkpoint: Path) -> dict[str, int]:
    with ckpt.reading.open_state(checkpoint) as state:
        rows = state.to_arrow()
    keys = rows.column("key").combine_chunks().field("value").to_pylist()
    return dict(zip(keys, rows.column("value").combine_chunks().field("count").to_pylist(), strict=True))


def _go_on(spark: SparkSession, settings: Settings, counts: Sequence[Counter[str]]) -> None:
    """Run the query to its end. Fail unless its state is right, and its sink has each batch that was not committed."""
    checkpoint, sink = Path(settings.checkpoint), Path(settings.sink)
    committed = max(list_batches(place_at(settings.checkpoint), "commits"), default=-1) + 1
    sink.mkdir()
    run(spark.newSession(), settings)
    assert _read_state(checkpoint) == dict(counts[FILES])
    shown = dict(counts[committed])
    for batch in sorted(int(each.name) for each in sink.iterdir()):
        assert batch >= committed
        shown |= json.loads((sink / str(batch)).read_text(encoding="utf-8"))
    assert shown == dict(counts[FILES])
    shutil.rmtree(sink)


@pytest.mark.parametrize("version", FORMATS)
def test_what_was_acknowledged_is_there_after_a_loss_of_power(
    version: int, spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(str(tmp_path / "lines"), str(tmp_path / "checkpoint"), str(tmp_path / "acks"), version)
    counts, acknowledged, checkpoint = _write_lines(tmp_path / "lines"), tmp_path / "acks", tmp_path / "checkpoint"
    acknowledged.mkdir()
    checkpoint.mkdir()
    disk = Disk(checkpoint)
    record(settings.command(), tmp_path / "trace", dict(os.environ))
    operations = list(read(tmp_path / "trace", [checkpoint, acknowledged]))
    looked = 0
    for batches, tree in _some(_states(operations, disk, acknowledged)):
        with _written(tree, tmp_path / f"after{looked}") as after:
            _require_whole(after, batches, counts)
            if looked % STARTED == STARTED // 2:
                _go_on(spark, replace(settings, checkpoint=str(after), sink=str(tmp_path / "sink")), counts)
        looked += 1
    assert looked, "there are states"
    unsynced = [each for each in operations if each.kind != "sync"]
    write(_last(unsynced, checkpoint, acknowledged), tmp_path / "unsynced")
    with pytest.raises(AssertionError):
        _require_whole(tmp_path / "unsynced", FILES, counts)


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_savepoint_is_whole_or_unfinished_after_a_loss_of_power(kind: str, tmp_path: Path) -> None:
    query, target = written(tmp_path / "query", 2), tmp_path / "saved" / "point"
    target.parent.mkdir()
    finished = 0
    command = ["savepoint", "create", query.location, str(target), "--kind", kind]
    for is_over, tree in _some(_states_of(command, target)):
        with _written(tree, tmp_path / "after") as after:
            found = find_savepoint_kind(place_at(str(after / "point")))
            if found is None or found is FolderKind.UNFINISHED_SAVEPOINT:
                assert not is_over, "what was acknowledged is gone"
                if any((after / "point").glob("[!.]*")):
                    _run("savepoint", "delete", str(after / "point"))
                _run("savepoint", "create", query.location, str(after / "point"), "--kind", kind)
            else:
                finished += 1
            _run("savepoint", "verify", str(after / "point"))
            if finished % RESTORED == 1:
                _run("savepoint", "restore", str(after / "point"), str(after / "restored"))
                assert stored(str(after / "restored")) == (query.version, 2, query.rows)
    assert finished


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_restore_goes_on_or_is_over_after_a_loss_of_power(partitions: int, tmp_path: Path) -> None:
    query, saved, target = written(tmp_path / "query", 2), tmp_path / "point", tmp_path / "new" / "checkpoint"
    _run("savepoint", "create", query.location, str(saved))
    target.parent.mkdir()
    command = ["savepoint", "restore", str(saved), str(target), "-n", str(partitions)]
    for is_over, tree in _some(_states_of(command, target)):
        # The same call goes on in the same folder: its name is part of the request.
        shutil.rmtree(target.parent)
        write(tree, target.parent)
        is_whole = _call("checkpoint", "verify", str(target))[0] == 0
        assert is_whole or not is_over, "what was acknowledged is gone"
        if not is_whole:
            _run(*command)
        assert stored(str(target)) == (query.version, partitions, query.rows)


def _last(operations: Sequence[Operation], checkpoint: Path, acknowledged: Path) -> Tree:
    """Return what is certainly durable at the end."""
    disk = Disk(checkpoint, is_empty=True)
    for operation in operations:
        if not operation.path.startswith(f"{acknowledged}/"):
            disk.apply(operation)
    return next(disk.states())


RESTORED = 20
"""One in so many finished savepoints is restored."""


def _states_of(arguments: list[str], target: Path) -> Iterator[tuple[bool, Tree]]:
    """Run a command; return the states that a loss of power may leave of the folder above its target, each once.

    With each: whether the command had ended.
    """
    disk, trace = Disk(target.parent), target.parent.with_name("trace")
    record([sys.executable, "-m", "pyspark_ckpt", *arguments], trace, dict(os.environ))
    operations = list(read(trace, [target.parent]))
    return _each_once([(number == len(operations) - 1, each) for number, each in enumerate(operations)], disk)


def _some(states: Iterator[tuple[T, Tree]]) -> Iterator[tuple[T, Tree]]:
    """Yield about ``STATES`` of the states, all if that is 0; the last one, after all that was done, always."""
    found = list(states)
    step = max(1, len(found) // STATES) if STATES else 1
    print(f"{len(found)} states, of which {len(found[::step])} are looked at")
    yield from found[::step]
    yield found[-1]


@contextlib.contextmanager
def _written(tree: Tree, folder: Path) -> Iterator[Path]:
    write(tree, folder)
    yield folder
    shutil.rmtree(folder)


def _call(*arguments: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(arguments))
    return code, said.getvalue()


def _run(*arguments: str) -> None:
    code, said = _call(*arguments)
    assert code == 0, f"{' '.join(arguments)}: {said}"
