"""A delete that nobody waits for any more may still be carried out, when somebody needs the object again."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.format.names import DeltaName, snapshot_name
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.retention.retention import Retention
from pyspark_ckpt.state_store.snapshots.writer import SnapshotWriter
from tests.labs.memory_place import MemoryPlace, MemoryService
from tests.labs.snapshots import TUNING, publish

NOW_S = 1_700_000_000.0
LOG = StoreLog("late", "0/0/default")


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, call: Any, /, *arguments: object, **named: object) -> Future[Any]:  # noqa: ANN401
        """Call it."""
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **named))
        return done


class LosingPlace(MemoryPlace):
    """A place that does not answer deletes of table files."""

    lost: str | None = None
    is_away = True

    def delete(self, name: str) -> None:
        """Remove an object, unless the request is lost."""
        if self.is_away and name.startswith("sst/"):
            self.lost = name
            raise StorageError(f"{name}: no answer", outcome="unknown", waited_s=60.0)
        super().delete(name)

    def now_s(self) -> float:
        """The time of the service."""
        return NOW_S


def test_a_notice_outlives_a_delete_that_nobody_waits_for_any_more() -> None:
    """It may be carried out when a snapshot that was slow needs the table file again."""
    place = LosingPlace(MemoryService(lambda: NOW_S), "memory:/store")
    writer, commits = SnapshotWriter(place, 0, TUNING, FailPoints(""), LOG, full=False), [EMPTY]

    def commit() -> Marker:
        commits.append(Marker(len(commits), f"{len(commits):032x}"))
        place.put(str(DeltaName(*reversed(commits[-2:]))), b"rows")
        return commits[-1]

    for number in range(3):
        publish(writer, place, commit(), [bytes([number]) * 100])
    manifests = [decode(place.get(snapshot_name(each)), "slow") for each in commits[1:3]]
    newest = commit()
    retention = Retention(place, Pins(place), 0.0, Inline(), FailPoints(""), LOG, lambda: NOW_S)
    with pytest.raises(StorageError):
        retention.clean(newest, 1)
    late = place.lost
    assert late is not None
    (slow,) = (each for each in manifests if late in each.objects())
    slow = msgspec.structs.replace(
        slow, store=msgspec.structs.replace(slow.store, version=newest.version, id=newest.id)
    )
    place.put(snapshot_name(newest), slow.encode())
    place.is_away = False
    retention.look_again()
    assert retention.clean(newest, 1) > 0
    assert late in Notices(place).tables()
