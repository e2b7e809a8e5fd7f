"""A loss of power leaves all that was acknowledged, at any moment, and whatever a file system makes of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from integration.power.crash_states import Disk, Tree, digest, write
from integration.power.outcomes import FILES, call, command, go_on, require_whole, write_lines
from integration.power.query import Settings
from integration.power.recording import Operation, can_record, read, record
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_savepoint_kind
from tests.labs.saved_query import SAVEPOINT_KINDS, stored, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.in_turn,
    pytest.mark.skipif(not can_record(), reason="NOT RUN: needs strace."),
]

FORMATS = (1, 2)
STATES = int(os.environ.get("CKPT_POWER_STATES", "120"))
"""How many states of each run are looked at; 0 means all."""
STARTED = int(os.environ.get("CKPT_POWER_STARTED", "60"))
"""The query goes on from one in so many states."""
T = TypeVar("T")


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


@pytest.mark.parametrize("version", FORMATS)
def test_what_was_acknowledged_is_there_after_a_loss_of_power(
    version: int, spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(str(tmp_path / "lines"), str(tmp_path / "checkpoint"), str(tmp_path / "acks"), version)
    counts, acknowledged, checkpoint = write_lines(tmp_path / "lines"), tmp_path / "acks", tmp_path / "checkpoint"
    acknowledged.mkdir()
    checkpoint.mkdir()
    disk = Disk(checkpoint)
    record(settings.command(), tmp_path / "trace", dict(os.environ))
    operations = list(read(tmp_path / "trace", [checkpoint, acknowledged]))
    looked = 0
    for batches, tree in _some(_states(operations, disk, acknowledged)):
        with _written(tree, tmp_path / f"after{looked}") as after:
            require_whole(str(after), batches, counts)
            if looked % STARTED == STARTED // 2:
                go_on(spark, replace(settings, checkpoint=str(after), sink=str(tmp_path / "sink")), counts)
        looked += 1
    assert looked, "there are states"
    unsynced = [each for each in operations if each.kind != "sync"]
    write(_last(unsynced, checkpoint, acknowledged), tmp_path / "unsynced")
    with pytest.raises(AssertionError):
        require_whole(str(tmp_path / "unsynced"), FILES, counts)


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_savepoint_is_whole_or_unfinished_after_a_loss_of_power(kind: str, tmp_path: Path) -> None:
    query, target = written(tmp_path / "query", 2), tmp_path / "saved" / "point"
    target.parent.mkdir()
    finished = 0
    words = ["savepoint", "create", query.location, str(target), "--kind", kind]
    for is_over, tree in _some(_states_of(words, target)):
        with _written(tree, tmp_path / "after") as after:
            found = find_savepoint_kind(place_at(str(after / "point")))
            if found is None or found is FolderKind.UNFINISHED_SAVEPOINT:
                assert not is_over, "what was acknowledged is gone"
                if any((after / "point").glob("[!.]*")):
                    command("savepoint", "delete", str(after / "point"))
                command("savepoint", "create", query.location, str(after / "point"), "--kind", kind)
            else:
                finished += 1
            command("savepoint", "verify", str(after / "point"))
            if finished % RESTORED == 1:
                command("savepoint", "restore", str(after / "point"), str(after / "restored"))
                assert stored(str(after / "restored")) == (query.version, 2, query.rows)
    assert finished


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_restore_goes_on_or_is_over_after_a_loss_of_power(partitions: int, tmp_path: Path) -> None:
    query, saved, target = written(tmp_path / "query", 2), tmp_path / "point", tmp_path / "new" / "checkpoint"
    command("savepoint", "create", query.location, str(saved))
    target.parent.mkdir()
    words = ["savepoint", "restore", str(saved), str(target), "-n", str(partitions)]
    for is_over, tree in _some(_states_of(words, target)):
        # The same call goes on in the same folder: its name is part of the request.
        shutil.rmtree(target.parent)
        write(tree, target.parent)
        is_whole = call("checkpoint", "verify", str(target))[0] == 0
        assert is_whole or not is_over, "what was acknowledged is gone"
        if not is_whole:
            command(*words)
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
