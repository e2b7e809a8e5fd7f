"""Owners that make snapshots slowly beside collectors that are slow at any step: no version is ever lost.

Every interleaving of requests follows from a seed; ``CKPT_RACES=2000`` runs so many of them, ``CKPT_RACES=7,12`` these.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
import xxhash

from pyspark_ckpt.state_store.blobs import Blob, Sink
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import Manifest, ManifestFile, decode, inline_file
from pyspark_ckpt.state_store.format.meta import EMPTY_META, FORMAT_VERSION
from pyspark_ckpt.state_store.format.names import DeltaName, snapshot_name, table_object_name
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.retention.retention import Retention
from pyspark_ckpt.state_store.snapshots.writer import SnapshotWriter
from tests.labs.memory_place import MemoryPlace, MemoryService
from tests.labs.stored_objects import StoredObjects
from tests.stateful.turns import Turns

KEEP = 1
TUNING = Tuning(1 << 20, "none")
LOG = StoreLog("race", "0/0/default")
CONTENTS = [bytes([number]) * 100 for number in range(4)]
"""Of table files, which snapshots share."""
DAY_S = 86400.0


class Inline(Executor):
    """Does at once what it is given, in the thread of the task whose turn it is."""

    def submit(self, call: Callable[..., Any], /, *arguments: object, **named: object) -> Future[Any]:
        """Call it."""
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **named))
        return done


class SlowPlace(MemoryPlace):
    """A place in which somebody else may have a turn, or several, before and after every request."""

    pass_turn: Callable[[], None]
    late: list[str]
    loses: Callable[[str], bool] = staticmethod(lambda _name: False)

    def _slow(self, request: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - of any request
        self.pass_turn()
        answer = request(*arguments)
        self.pass_turn()
        return answer

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object."""
        self.pass_turn()
        with super().create(name) as sink:
            yield sink
        self.pass_turn()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists."""
        return bool(self._slow(super().put_if_absent, name, data))

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``."""
        self._slow(super().put, name, data)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of an object."""
        content: bytes = self._slow(super().get, name, start, end)
        return content

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects of a folder."""
        found: list[Blob] = self._slow(super().list, folder, prefix, start)
        return found

    def delete(self, name: str) -> None:
        """Remove an object; perhaps some time after whoever asked for it has given up."""
        if self.loses(name):
            self.late.append(name)
            raise StorageError(f"{name}: no answer", outcome="unknown", waited_s=60.0)
        self._slow(super().delete, name)

    def now_s(self) -> float:
        """The time of the service."""
        return self._service.clock()


class World:
    """One store, what was committed of it, and what may still be asked for."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.ids = draw, random.Random(draw.getrandbits(64))
        self.now_s = 1_700_000_000.0
        self.grace_s = draw.choice((0.0, 0.0, 100.0, 600.0))
        self.service = MemoryService(lambda: self.now_s)
        self.objects = StoredObjects(self.service.place("memory:/store"))
        self.commits = [EMPTY]
        self.first_kept = 0
        self.turns = Turns(draw, self.time_passes)
        self.late: list[str] = []

    def time_passes(self) -> None:
        """Somebody else's turn: a moment, or as long as it takes to resume a suspended machine."""
        self.now_s += self.draw.choices((0.0, 1.0, 10.0, 700.0, 2 * DAY_S), (60, 20, 10, 3, 0.1))[0]

    def pass_turn(self) -> None:
        """Let others go on: for a moment, or until they have done a lot."""
        for _ in range(self.draw.choices((1, 30, 500), (94, 3, 3))[0]):
            self.turns.hand_over()

    def make_id(self) -> str:
        """An id that follows from the seed."""
        return f"{self.ids.getrandbits(128):032x}"

    def place(self) -> SlowPlace:
        place = SlowPlace(self.service, "memory:/store")
        place.pass_turn = self.pass_turn
        return place

    def commit(self, place: MemoryPlace) -> None:
        """Make the next version, and look whether all that may be asked for is there."""
        parent = self.commits[-1]
        commit = Marker(parent.version + 1, self.make_id())
        place.put(str(DeltaName(commit, parent)), b"rows")
        self.commits.append(commit)
        self.check()

    def check(self) -> None:
        self.objects.require(self.commits[max(1, self.first_kept) :])

    def own(self) -> None:
        """An executor that commits and makes snapshots."""
        place = self.place()
        writer = SnapshotWriter(place, 0, TUNING, FailPoints(""), LOG, full=False, make_id=self.make_id)
        for _ in range(self.draw.randint(3, 8)):
            for _ in range(self.draw.randint(1, 3)):
                self.commit(self.service.place("memory:/store"))
            publish(writer, place, self.commits[-1], self.draw.sample(CONTENTS, self.draw.randint(1, 3)))

    def collect(self) -> None:
        """A clean-up here or elsewhere, of an executor whose clock is wrong."""
        skew_s = self.draw.choice((0.0, 660.0, -3600.0))
        place = self.place()
        retention = Retention(
            place,
            Pins(place),
            self.grace_s,
            Inline(),
            FailPoints(""),
            LOG,
            lambda: self.now_s + skew_s,
            make_id=self.make_id,
        )
        is_away_at_times = self.draw.random() < 0.5
        place.late, place.loses = self.late, lambda _name: is_away_at_times and self.draw.random() < 0.1
        for _ in range(self.draw.randint(2, 6)):
            newest = self.commits[-1]
            if newest != EMPTY:
                self.first_kept = max(self.first_kept, newest.version - KEEP)
                retention.look_again()
                with suppress(StorageError):
                    retention.clean(newest, KEEP)
                self.check()
            self.turns.hand_over()

    def deliver(self) -> None:
        """A network that carries out a delete after nobody waits for it any more."""
        place = self.service.place("memory:/store")
        for _ in range(200):
            self.pass_turn()
            if self.late and self.draw.random() < 0.2:
                place.delete(self.late.pop(self.draw.randrange(len(self.late))))
                self.check()
        for name in self.late:
            place.delete(name)


def publish(writer: SnapshotWriter, place: MemoryPlace, commit: Marker, contents: list[bytes]) -> None:
    """Make a snapshot of table files with these contents, as the product does with those of a database."""
    known = writer._find_confirmed_objects(commit, Lineage.read(place))
    files = [inline_file("CURRENT", b"MANIFEST-000001\n"), inline_file("MANIFEST-000001", b"files")]
    for number, content in enumerate(contents):
        sha256 = hashlib.sha256(content).hexdigest()
        name = known.get(sha256)
        if name is None:
            name = table_object_name(sha256, writer._make_id())
            with place.create(name) as sink:
                sink.write(content)
        xxh3 = xxhash.xxh3_128_hexdigest(content)
        files.append(ManifestFile(f"{number + 2:06d}.sst", len(content), sha256, xxh3, name))
    store = msgspec.structs.replace(EMPTY_META, version=commit.version, id=commit.id)
    manifest = Manifest(FORMAT_VERSION, store, 1, (0, 1), tuple(files))
    if writer._is_complete(manifest):
        writer._put(manifest)


def test_a_notice_outlives_a_delete_that_nobody_waits_for_any_more() -> None:
    """It may be carried out when a snapshot that was slow needs the table file again."""
    world = World(random.Random(0))
    world.grace_s, place = 0.0, world.place()
    place.pass_turn, place.late, place.loses = (lambda: None), [], lambda name: name.startswith("sst/")
    writer = SnapshotWriter(place, 0, TUNING, FailPoints(""), LOG, full=False)
    for content in CONTENTS[:3]:
        world.commit(place)
        publish(writer, place, world.commits[-1], [content])
    manifests = [decode(place.get(snapshot_name(commit)), "slow") for commit in world.commits[1:3]]
    world.commit(place)
    retention = Retention(place, Pins(place), 0.0, Inline(), FailPoints(""), LOG, lambda: world.now_s)
    with pytest.raises(StorageError):
        retention.clean(world.commits[-1], KEEP)
    (late,) = place.late
    (slow,) = (each for each in manifests if late in each.objects())
    newest = world.commits[-1]
    store = msgspec.structs.replace(slow.store, version=newest.version, id=newest.id)
    slow = msgspec.structs.replace(slow, store=store)
    place.put(snapshot_name(newest), slow.encode())
    place.loses = lambda _name: False
    retention.look_again()
    assert retention.clean(newest, KEEP) > 0
    assert late in Notices(place).tables()


def race(seed: int) -> None:
    """Two owners, of which one is a zombie, and three collectors, all at once."""
    world = World(random.Random(seed))
    world.turns.take([world.own, world.own, world.collect, world.collect, world.collect, world.deliver])
    world.check()


def seeds() -> list[int]:
    chosen = os.environ.get("CKPT_RACES", "60")
    return [int(seed) for seed in chosen.split(",")] if "," in chosen else list(range(int(chosen)))


def test_no_version_is_lost_whoever_is_slow() -> None:
    for seed in seeds():
        try:
            race(seed)
        except AssertionError as lost:
            pytest.fail(f"seed {seed}: {lost}")
