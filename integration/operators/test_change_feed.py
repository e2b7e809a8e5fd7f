"""Spark's reader of state with the options that need single versions: ``readChangeFeed``, ``snapshotStartBatchId``.

Spark's change feed shows every write in its order; ours shows what each batch has made of each key, in key order. So
Spark's is reduced to the outcome of its batches (``_outcome``) before the two are compared.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import Row

from integration.conftest import PARTITIONS
from integration.operators import (
    test_aggregation,
    test_deduplication,
    test_group_states,
    test_grouped_python,
    test_join,
    test_session_windows,
)
from integration.operators.keyed import EVENTS
from integration.operators.providers import ROCKSDB, Provider
from integration.operators.replay import Case, StateView, read_state, replay, replay_both
from integration.sample import sampled
from pyspark_ckpt.state_store.attempts.winners import Evidence, resolve
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.identity import Identity
from tests.labs.lab import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_SPARKS = Provider("rocksdb, changelog", ROCKSDB.provider_class, {**ROCKSDB.settings, _CHANGELOG: "true"})
_REMOTE = "spark.sql.streaming.stateStore.ckpt.remote"


class _Change(NamedTuple):
    batch: int
    kind: str
    key: str
    value: str
    partition: int


def _feed(spark: SparkSession, folder: Path, view: StateView, first: int = 0, **options: str) -> list[_Change]:
    """All changes in the order in which Spark gives them, which is kept within a partition."""
    frame = (
        spark.read.format("statestore")
        .options(readChangeFeed="true", changeStartBatchId=str(first), **view.options, **options)
        .load(str(folder / "checkpoint"))
    )
    rows = frame.selectExpr("batch_id", "change_type", "key", "value", "partition_id").collect()
    return [_Change(row[0], row[1], repr(row[2]), repr(row[3]), row[4]) for row in rows]


def _own_feed(spark: SparkSession, folder: Path, view: StateView) -> list[_Change]:
    """The same changes, by the source of this package."""
    options = {"store": view.options["storeName"]} if view.options else {}
    path = str(folder / "checkpoint")
    sparks = spark.read.format("statestore").options(**view.options).load(path).schema
    frame = spark.read.format("ckpt_state").options(readChangeFeed="true", **options).load(path)
    rows = frame.select("batch_id", "change_type", "key", "value", "partition").collect()
    return [
        _Change(row[0], row[1], _show(row[2], sparks["key"]), _show(row[3], sparks["value"]), row[4]) for row in rows
    ]


def _show(values: Row | None, field: StructField) -> str:
    """Show a struct with Spark's names, of which several columns may have the same one."""
    kind: Any = field.dataType
    return repr(None if values is None else Row(*kind.names)(*values))


def _outcome(feed: Sequence[_Change]) -> list[_Change]:
    """What each batch has made of each key: a feed from the first batch on, without the writes on the way there."""
    several = any(change.kind == "append" for change in feed)
    values: dict[tuple[int, str], list[str]] = defaultdict(list)
    found = []
    for (partition, batch), changes in groupby(feed, lambda change: (change.partition, change.batch)):
        before: dict[str, list[str]] = {}
        for _, kind, key, value, _ in changes:
            now = values[partition, key]
            before.setdefault(key, list(now))
            if kind != "append":
                now.clear()
            if kind != "delete":
                now.append(value)
        for key, old in before.items():
            kinds = _kinds(old, values[partition, key], several=several)
            found += [_Change(batch, kind, key, value, partition) for kind, value in kinds]
    return found


def _kinds(old: list[str], new: list[str], *, several: bool) -> Iterator[tuple[str, str]]:
    if not new:
        yield from [("delete", "None")] if old else []
    elif several and len(new) > len(old) and new[: len(old)] == old:
        yield from (("append", value) for value in new[len(old) :])
    else:
        yield "update", new[0]
        yield from (("append", value) for value in new[1:])


def _without_restart(case: Case, *views: StateView, files: int = 3) -> Case:
    return replace(case, runs=(files,), state=views or case.state)


def _stores(*names: str) -> tuple[StateView, ...]:
    return tuple(StateView({"storeName": name}) for name in names)


_EXACT = {
    "an aggregation": _without_restart(test_aggregation.CASES["by key, update"]),
    "a deduplication": _without_restart(test_deduplication.CASES["within watermark, columns"]),
    "python groups": _without_restart(test_grouped_python.CASES["state set and removed"]),
}
"""Operators that write a key once in a batch: their feed is Spark's, change for change."""

_CASES = _EXACT | {
    "an aggregation of windows": _without_restart(test_aggregation.CASES["window, watermark, append"]),
    "session windows": _without_restart(test_session_windows.CASES["one key"]),
    "a join in four stores": _without_restart(
        test_join.CASES["leftSemi, format 2"],
        *_stores("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyWithIndexToValue"),
    ),
    "a join with several values a key": _without_restart(
        test_join.CASES["leftOuter, format 4"], *_stores("left-keyWithTsToValues", "right-tsWithKey")
    ),
}


_LEFT_OUT = {
    "an aggregation of windows",
    "a deduplication",
    "session windows",
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(_CASES, _LEFT_OUT))
def test_the_change_feed_equals_sparks_batch_by_batch(
    name: str, spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = _CASES[name]
    replay_both(spark, replace(case, state=()), _SPARKS, provider, tmp_path)
    for view in case.state:
        expected = _feed(_SPARKS.session(spark), tmp_path / "expected", view)
        actual = _feed(provider.session(spark), tmp_path / "actual", view)
        assert len({change.batch for change in expected}) > 1
        assert sorted(actual) == sorted(expected if name in _EXACT else _outcome(expected))
        for _, changes in groupby(actual, lambda change: change.partition):
            batches = [change.batch for change in changes]
            assert batches == sorted(batches)
        if all(change.kind != "append" for change in actual):
            assert sorted(_own_feed(provider.session(spark), tmp_path / "actual", view)) == sorted(actual)
        middle = _feed(provider.session(spark), tmp_path / "actual", view, 1, changeEndBatchId="2")
        assert middle == [change for change in actual if change.batch in (1, 2)]


def test_feed_and_replay_are_the_same_in_both_checkpoint_formats_and_in_another_place(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = replace(test_aggregation.CASES["window, watermark, append"], runs=(2, 1))
    second = provider.in_format(2)
    elsewhere = tmp_path / "elsewhere"
    variants = {
        "one": provider.in_format(1),
        "apart": replace(second, settings={**second.settings, _REMOTE: str(elsewhere)}),
    }
    feeds, states = [], []
    for name, each in variants.items():
        folder = tmp_path / name
        state = replay(spark, case, each, folder).state
        session = each.session(spark)
        feeds.append(_feed(session, folder, case.state[0]))
        root = elsewhere if name == "apart" else folder / "checkpoint"
        _make_snapshots(root, folder / "checkpoint", batch=1, scratch=tmp_path / f"{name}-server")
        replayed = [
            read_state(session, case, folder, snapshotStartBatchId="1", snapshotPartitionId=str(partition))[0]
            for partition in range(PARTITIONS)
        ]
        assert sorted(replayed[0] + replayed[1]) == sorted(state[0])
        states.append(replayed)
    assert feeds[0]
    assert feeds[0] == feeds[1]
    assert states[0] == states[1]


def test_a_replay_from_a_snapshot_reads_the_state_of_every_later_batch(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = _without_restart(test_join.CASES["leftSemi, format 2"])
    replay(spark, replace(case, state=()), provider, tmp_path)
    _make_snapshots(tmp_path / "checkpoint", tmp_path / "checkpoint", batch=1, scratch=tmp_path / "server")
    session = provider.session(spark, **{"spark.sql.shuffle.partitions": "7"})
    for batch in ("1", "2"):
        replayed = [
            read_state(
                session, case, tmp_path, batchId=batch, snapshotStartBatchId="1", snapshotPartitionId=str(partition)
            )
            for partition in range(PARTITIONS)
        ]
        expected = read_state(provider.session(spark), case, tmp_path, batchId=batch)
        assert expected[0]
        assert [sorted(sum(rows, ())) for rows in zip(*replayed, strict=True)] == [sorted(rows) for rows in expected]


def test_the_reader_names_what_is_there_when_the_batch_that_is_asked_for_is_not(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = _without_restart(_EXACT["an aggregation"])
    replay(spark, replace(case, state=()), provider, tmp_path)
    _make_snapshots(tmp_path / "checkpoint", tmp_path / "checkpoint", batch=1, scratch=tmp_path / "server")
    session = provider.session(spark)
    with pytest.raises(Py4JJavaError, match=r"no snapshot of batch 0 .*there are snapshots of batches 1"):
        read_state(session, case, tmp_path, snapshotStartBatchId="0", snapshotPartitionId="0")
    for delta in (tmp_path / "checkpoint" / "state").rglob(f"{1:020d}-*.delta"):
        delta.unlink()
    with pytest.raises(Py4JJavaError, match=r"changes of batch 0 \(version 1\) are missing; batches 1 to 2 can"):
        _feed(session, tmp_path, case.state[0])
    assert {change.batch for change in _feed(session, tmp_path, case.state[0], 1)} == {1, 2}


def test_the_feed_of_a_function_with_states_of_ours_shows_sparks_state_alone(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = Case(test_group_states.visited, (EVENTS,), "update", runs=(len(EVENTS.batches),), state=())
    replay(spark, case, provider, tmp_path)
    calls: dict[int | None, int] = defaultdict(int)
    expected = []
    for batch, rows in enumerate(EVENTS.batches):
        for user in {row[1] for row in rows}:
            calls[user] += 1
            expected.append((batch, "update", user, calls[user]))
    frame: DataFrame = (
        provider.session(spark)
        .read.format("statestore")
        .options(readChangeFeed="true", changeStartBatchId="0")
        .load(str(tmp_path / "checkpoint"))
    )
    found = frame.selectExpr("batch_id", "change_type", "key.user", "value.groupState.calls").collect()
    assert sorted(map(repr, map(tuple, found))) == sorted(map(repr, expected))


def _make_snapshots(root: Path, checkpoint: Path, batch: int, scratch: Path) -> None:
    """Have a state server of its own make a snapshot of every store, as of a batch."""
    server = Server(scratch, {})
    try:
        for folder in sorted({delta.parent for delta in root.rglob("*.delta")}):
            parts = folder.parts[len(folder.parts) - folder.parts[::-1].index("state") :]
            operator, partition, name = int(parts[0]), int(parts[1]), parts[2] if parts[2:] else "default"
            handle = server.call(
                "open",
                state_dir=str(folder),
                checkpoint_root=str(checkpoint),
                operator=operator,
                partition=partition,
                name=name,
                run_id="snapshots",
                format=2,
                min_versions_to_retain=100,
            )["handle"]
            base = resolve(
                Identity(operator, partition, name),
                batch + 1,
                Evidence(place_at(str(folder)), place_at(str(checkpoint))),
            )
            txn = server.call("begin", handle=handle, version=base.version, id=base.id)["txn"]
            server.call("abort", txn=txn)
            assert server.call("snapshot", handle=handle, force=True)["version"] == batch + 1
    finally:
        server.stores.shut_down()
