"""Scenes of one store in a slow place: owners make its snapshots, and collectors delete what nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from pyspark_ckpt.state_store.blobs import Blob, Sink
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.retention.retention import Retention
from pyspark_ckpt.state_store.snapshots.writer import SnapshotWriter
from tests.labs.memory_place import MemoryPlace, MemoryService
from tests.labs.snapshots import TUNING, publish
from tests.labs.stored_objects import StoredObjects
from tests.simulation.scheduler import START_S, STARTED_S
from tests.simulation.stage import Stage
from tests.simulation.standard_library import SimulatedExecutor

KEEP = 1
LOG = StoreLog("scene", "0/0/default")
CONTENTS = [bytes([number]) * 100 for number in range(4)]
"""Of table files, which snapshots share."""

PAUSES_S = (10.0, 100.0, 1000.0, 10_000.0)
"""How long a machine may sleep before or after a request."""

T = TypeVar("T")


class SlowPlace(MemoryPlace):
    """A place whose requests take a moment or days, or whose deletes arrive when nobody waits for them any more."""

    def __init__(
        self, service: MemoryService, stage: Stage, check: Callable[[], None], lost: float, *, is_careless: bool
    ) -> None:
        """Call ``check`` after each delete. ``lost``: how probable it is that a delete is not answered.

        ``is_careless``: ignore the condition of a write.
        """
        super().__init__(service, "memory:/store")
        self._is_careless = is_careless
        self._stage = stage
        self._check = check
        self._lost = lost
        self._pauses = stage.draw.choice((0.0, 0.02, 0.1))

    def _slow(self, request: Callable[[], T]) -> T:
        self._pass_time()
        answer = request()
        self._pass_time()
        return answer

    def _pass_time(self) -> None:
        draw = self._stage.draw
        pauses = draw.random() < self._pauses
        self._stage.scheduler.sleep(draw.choice(PAUSES_S) * draw.random() if pauses else draw.random())

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object."""
        self._pass_time()
        with super().create(name) as sink:
            yield sink
        self._pass_time()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists, or whether it does or not."""
        if self._is_careless:
            self.put(name, data)
            return True
        return self._slow(partial(super().put_if_absent, name, data))

    def is_exclusive(self) -> bool:
        """Return whether a second conditional write of one name is refused."""
        return not self._is_careless

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``."""
        self._slow(partial(super().put, name, data))

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of an object."""
        return self._slow(partial(super().get, name, start, end))

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects of a folder."""
        return self._slow(partial(super().list, folder, prefix, start))

    def delete(self, name: str) -> None:
        """Remove an object; perhaps some time after whoever asked for it has given up."""
        stage = self._stage
        if stage.draw.random() < self._lost:
            stage.scheduler.spawn(partial(self._delete_late, name), "late delete")
            raise StorageError(f"{name}: no answer", outcome="unknown", waited_s=60.0)
        self._slow(partial(self._delete, name))

    def _delete(self, name: str) -> None:
        super().delete(name)
        self._check()

    def _delete_late(self, name: str) -> None:
        self._stage.scheduler.sleep(self._stage.draw.choice(PAUSES_S) * self._stage.draw.random())
        self._delete(name)

    def now_s(self) -> float:
        """The time of the service."""
        return self._service.clock()


class Store:
    """What was committed of a store, and what may still be asked for."""

    def __init__(self, stage: Stage) -> None:
        """Begin with nothing."""
        self.stage = stage
        self.is_careless = stage.draw.random() < 0.25
        """Whether one of two snapshots of a commit may replace the other one."""
        self.grace_s = stage.draw.choice((0.0, 0.0, 100.0, 600.0))
        self.service = MemoryService(lambda: START_S + stage.scheduler.now_s)
        self.quick = self.service.place("memory:/store")
        self.objects = StoredObjects(self.quick)
        self.commits = [EMPTY]
        self.first_kept = 0
        self.published: set[Marker] = set()

    def make_id(self) -> str:
        """Return an id that follows from the seed."""
        return f"{self.stage.draw.getrandbits(128):032x}"

    def place(self, lost: float = 0.0) -> SlowPlace:
        """Return a slow way to the store."""
        return SlowPlace(self.service, self.stage, self.check, lost, is_careless=self.is_careless)

    def commit(self) -> None:
        """Make the next version."""
        parent = self.commits[-1]
        commit = Marker(parent.version + 1, self.make_id())
        self.quick.put(str(DeltaName(commit, parent)), b"rows")
        self.commits.append(commit)
        self.check()

    def check(self) -> None:
        """Fail unless all that may be asked for is there, and each published snapshot that is there is whole."""
        self.objects.require(self.commits[max(1, self.first_kept) :])
        lineage = Lineage.read(self.quick)
        for marker in self.published & lineage.snapshots.keys():
            lost = self.objects.find_missing(lineage.snapshots[marker])
            assert not lost, f"the snapshot of {marker} was published, and {lost} is gone"

    def retention(self, place: SlowPlace, ahead_s: float = 0.0) -> Retention:
        """Return a clean-up on a machine whose clock may be wrong."""
        scheduler = self.stage.scheduler
        return Retention(
            place, Pins(place), self.grace_s, SimulatedExecutor(2), FailPoints(""), LOG,  # type: ignore[arg-type]
            lambda: STARTED_S + scheduler.now_s + ahead_s, make_id=self.make_id,
        )  # fmt: skip

    def own(self) -> None:
        """Be an executor that commits and makes snapshots."""
        stage, draw, place = self.stage, self.stage.draw, self.place()
        writer = SnapshotWriter(place, 0, TUNING, FailPoints(""), LOG, full=False, make_id=self.make_id)
        for _ in range(draw.randint(3, 12)):
            for _ in range(draw.randint(0 if len(self.commits) > 1 else 1, 3)):  # 0: the other owner has made it
                self.commit()
            contents = draw.sample(CONTENTS, draw.randint(1, 3))
            self.make_snapshot(writer, place, self.commits[-1], contents)
            stage.scheduler.sleep(draw.choice((1, 100, 1000)) * draw.random())

    def make_snapshot(
        self, writer: SnapshotWriter, place: SlowPlace, commit: Marker, contents: Sequence[bytes]
    ) -> None:
        """Make a snapshot. Fail if it is given up although it took less than the grace period."""
        began_s = self.stage.scheduler.now_s
        outcome = publish(writer, place, commit, contents)
        took_s = self.stage.scheduler.now_s - began_s
        if outcome == "published" and not self.is_careless:
            self.published.add(commit)
        assert self.is_careless or outcome != "given up" or took_s > self.grace_s - 1, (
            f"a snapshot of {took_s:.0f} s is given up"
        )
        self.check()

    def collect(self) -> None:
        """Be a clean-up of some executor."""
        draw = self.stage.draw
        place = self.place(draw.choice((0.0, 0.1)))
        retention = self.retention(place, draw.choice((0.0, 660.0, -3600.0)))
        for _ in range(draw.randint(3, 12)):
            newest = self.commits[-1]
            if newest != EMPTY:
                self.first_kept = max(self.first_kept, newest.version - KEEP)
                retention.look_again()
                with suppress(StorageError):
                    retention.clean(newest, KEEP)
                self.check()
            self.stage.scheduler.sleep(draw.choice((1, 100, 1000)) * draw.random())


def snapshots_beside_clean_ups(stage: Stage) -> None:
    """Two owners, of which one is a zombie, and three collectors, all of them slow: no version is ever lost."""
    store = Store(stage)
    stage.play(store.own, store.own, store.collect, store.collect, store.collect)
    store.check()
