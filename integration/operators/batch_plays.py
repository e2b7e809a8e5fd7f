"""Plays of queries whose foreachBatch function runs its action in some way; each tells what a user has seen.

They run in a session of Spark's own as well as in a Spark Connect client.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt
from integration.operators.batch_stage import Stage, await_true
from integration.operators.providers import CHECKPOINT_FORMAT, HDFS_BACKED, OURS, PROVIDER_CLASS
from integration.short import has
from pyspark_ckpt.state_store.attempts.runs import NO_RUN_EPOCH
from pyspark_ckpt.state_store.attempts.winners import WINNER_FORMAT, WinnerObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.format.names import WinnerName
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession


def corrected(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """A batch fails after its action, and the program is corrected: the totals, and the failure."""
    stage.put(1, 10)
    ended = [stage.run()]
    stage.put(5)
    ended.append(replace(stage, weight=199, fails=True).run())
    ended.append(stage.run())
    stage.put(100)
    ended.append(stage.run())
    return {"totals": stage.totals(), "failures": ["made-up" in each or each for each in ended]}


def copied(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """A checkpoint with its state in ``remote`` is copied, and the copy is run."""
    remote = stage.folder / "remote"
    conf = {f"{PREFIX}remote": str(remote)}
    stage = replace(stage, conf={**stage.conf, **conf})
    stage.put(1)
    first = stage.run()
    shutil.copytree(stage.checkpoint, stage.folder / "copy")
    before = stage.stored("*")
    stage.put(10)
    refused = replace(stage, at="copy", weight=100).run()
    unchanged = [name for name in stage.stored("*") if "owner" not in name] == [n for n in before if "owner" not in n]
    last = stage.run()
    stage.spark.conf.unset(f"{PREFIX}remote")
    return {
        "first": first,
        "refused": "belongs to the checkpoint" in refused or refused,
        "unchanged": unchanged,
        "last": last,
        "totals": stage.totals(),
    }


def kept(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """Eight batches in two runs: whether there are snapshots, and whether old deltas are deleted."""
    conf = {
        f"{PREFIX}snapshotEveryVersions": "2",
        f"{PREFIX}retentionGracePeriod": "0",
        "spark.sql.streaming.minBatchesToRetain": "2",
    }
    stage = replace(stage, conf={**stage.conf, **conf})
    ended = []
    for _ in range(3):
        stage.put(1, 1, 1)
        ended.append(stage.run())
        time.sleep(1)
    snapshots, deltas = stage.stored("*.snapshot"), stage.stored("*.delta")
    oldest = min(int(Path(name).name.split("-")[0]) for name in deltas)
    return {"ended": ended, "snapshots": bool(snapshots), "deleted": oldest > 1, "totals": stage.totals()}


def continued(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """Three batches, a restart, and two more."""
    stage.put(1, 10, 100)
    ended = [stage.run()]
    stage.put(1000, 10000)
    ended.append(stage.run())
    return {"ended": ended, "totals": stage.totals()}


def reading(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """The function reads the state of the batch before, which does not count as another run of the query."""
    stage.put(1, 10, 100)
    ended = [replace(stage, reads=True).run()]
    stage.put(1000)
    ended.append(stage.run())
    return {"ended": ended, "totals": stage.totals()}


def long(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """Eight batches, a restart, and four more."""
    stage.put(*[1] * 8)
    ended = [stage.run()]
    stage.put(*[1] * 4)
    ended.append(stage.run())
    return {"ended": ended, "totals": stage.totals()}


def resident(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """As ``continued``, and whether any store had its state in memory."""
    found = continued(stage)
    stage.put(0)
    _, progress = stage.run_and_see()
    used = [each["customMetrics"]["ckptMemoryBytes"] for each in progress["stateOperators"]]
    return {**found, "in memory": all(used)}


def overtaken(stage: Stage) -> str:
    """A wrong program waits in its third batch until its successor has ended that: how it fails."""
    stage.put(1, 10)
    stage.run()
    stage.put(100)
    failure = replace(stage, weight=10, waits=True).run()
    (stage.folder / "over").touch()
    return failure


def succeeding(stage: Stage) -> list[Any]:
    """The successor of ``overtaken``: the totals."""
    await_true((stage.folder / "held").exists)
    ended = [stage.run()]
    (stage.folder / "go").touch()
    await_true((stage.folder / "over").exists)
    stage.put(1000)
    ended.append(stage.run())
    return stage.totals() if ended == DONE else ended


def adopted(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """A query of Spark's own provider is moved in after a batch."""
    before = {PROVIDER_CLASS: HDFS_BACKED.provider_class, CHECKPOINT_FORMAT: "1"}
    stage.put(1)
    ended = [replace(stage, way="direct", at="spark", conf=before).run()]
    ckpt.moving.adopt(stage.folder / "spark", stage.checkpoint)
    stage.put(10, 100)
    ended.append(stage.run())
    return {"ended": ended, "totals": stage.totals()}


def partitioned(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """The log of offsets says another number of partitions than that of the state."""
    stage.put(1, 10)
    first = stage.run()
    for path in (stage.checkpoint / "offsets").glob("[0-9]*"):
        text = path.read_text()
        path.write_text(text.replace('shuffle.partitions":"2"', 'shuffle.partitions":"1"'))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    stage.put(100)
    refused = stage.run()
    return {"first": first, "refused": "written with 2 partitions" in refused or refused}


def agreed(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """A program makes the copies of a broadcast state differ."""
    stage.put(1)
    refused = replace(stage, query="keyed", broadcasts=True).run()
    return {"refused": "The copies of broadcast state 'it/rules' differ" in refused or refused}


def unnumbered(stage: Stage) -> Any:  # noqa: ANN401 - JSON
    """The winners of a checkpoint in format 1 have no run, as earlier releases left them; one is of a failed batch."""
    stage.put(1, 10)
    ended = [stage.run()]
    stage.put(5)
    ended.append(replace(stage, weight=199, fails=True).run())
    for partition in (stage.checkpoint / "state" / "0").glob("[0-9]*"):
        forget_runs(partition)
    ended.append(stage.run())
    stage.put(100)
    ended.append(stage.run())
    return {"totals": stage.totals(), "failures": ["made-up" in each or each for each in ended]}


def forget_runs(partition: Path) -> None:
    """Give the winners of a partition the epoch and the run that tasks without a query had under earlier releases."""
    place = LocalPlace(partition)
    for path in list(partition.glob("*.winner")):
        winner = read_sealed(place, path.name, WinnerObject)
        path.unlink()
        name = str(WinnerName(winner.version, NO_RUN_EPOCH))
        (partition / name).write_bytes(seal(WinnerObject(WINNER_FORMAT, winner.version, winner.id, "")))


PLAYS: dict[str, Callable[[Stage], Any]] = {
    each.__name__: each
    for each in (
        corrected,
        copied,
        kept,
        continued,
        reading,
        long,
        resident,
        overtaken,
        succeeding,
        adopted,
        partitioned,
        agreed,
        unnumbered,
    )
}
DONE = ["", ""]
SEEN: dict[str, Any] = {
    "corrected": {"totals": [1, 11, 16, 116], "failures": ["", True, "", ""]},
    "copied": {"first": "", "refused": True, "unchanged": True, "last": "", "totals": [1, 11]},
    "kept": {"ended": ["", "", ""], "snapshots": True, "deleted": True, "totals": [*range(1, 10)]},
    "continued": {"ended": DONE, "totals": [1, 11, 111, 1111, 11111]},
    **({"reading": {"ended": DONE, "totals": [1, 11, 111, 1111]}} if has("4.0") else {}),
    "adopted": {"ended": DONE, "totals": [1, 11, 111]},
    "partitioned": {"first": "", "refused": True},
    "agreed": {"refused": True},
    "unnumbered": {"totals": [1, 11, 16, 116], "failures": ["", True, "", ""]},
}
"""What each play has to tell."""


def settings(checkpoint_format: int, **more: str) -> dict[str, str]:
    """Confs of a session for plays."""
    return {**OURS.settings, PROVIDER_CLASS: OURS.provider_class, CHECKPOINT_FORMAT: str(checkpoint_format), **more}


def perform(spark: SparkSession, folder: Path, runs: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Perform plays, each with its name, the way and the format; perhaps the query, confs and a folder's name."""
    found = []
    for number, each in enumerate(runs):
        conf = {**settings(each["format"]), **each.get("conf", {})}
        for key, value in conf.items():
            spark.conf.set(key, value)
        own = folder / each.get("folder", str(number))
        own.mkdir(exist_ok=True)
        stage = Stage(spark, own, each["way"], each.get("query", "aggregation"))
        found.append(PLAYS[each["play"]](replace(stage, conf=conf)))
    return found
