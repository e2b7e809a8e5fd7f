"""An executor of a model query: a state server with a local disk and a network that fail, and its sudden death."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from pyspark_ckpt.state_store.blobs import BlobPlace
from tests.faults.faulty_disk import Trouble, broken
from tests.faults.faulty_place import FaultyPlace, Link, Network
from tests.labs.lab import Server, Txn
from tests.labs.memory_place import MemoryService

CHECKPOINT = "memory:/checkpoint"
STATE = f"{CHECKPOINT}/state/0/0"
GRACE_S = 100
OPTIONS = {
    "retentionGracePeriod": f"{GRACE_S}s",
    "localCheckpoints": "1",
    "snapshotEveryVersions": "2",
}


class FragileServer(Server):
    """A state server whose local disk may be in trouble during a call."""

    trouble: Trouble | None = None

    def call(self, method: str, **request: object) -> dict[str, Any]:
        """Answer, and follow what was committed, on the disk as it is."""
        with nullcontext() if self.trouble is None else broken(self.stores.local_dir, self.trouble):
            try:
                return super().call(method, **request)
            finally:
                self.settled()


class Executor:
    """A name, and the state server that it has at present.

    ``newest`` is the version that its server was last asked for; ``kept_by_disk`` says that its disk was read-only
    once, so that something may be left there.
    """

    def __init__(self, name: str, folder: Path, service: MemoryService, network: Network) -> None:
        """Keep local files below ``folder``."""
        self.name = name
        self._folders = (folder / f"{name}-{number}" for number in count())
        self._tasks = count()
        self._service = service
        self._network = network
        self._image: Path | None = None
        self._start(next(self._folders))

    def _start(self, local_dir: Path) -> None:
        self.link = link = Link(self._network, self.name)
        self.newest = 0
        self.kept_by_disk = False
        self.handles: dict[tuple[str, int], int] = {}

        def place(uri: str, *_: object) -> BlobPlace:
            return FaultyPlace(self._service.place(uri), link)

        ids = random.Random(f"{self._network.seed}, {local_dir.name}")
        self.server = FragileServer(
            local_dir, OPTIONS, place, self._network.clock, make_id=lambda: f"{ids.getrandbits(128):032x}"
        )
        # Fail points are points like requests: they stand where a death hurts. Those of requests are in the link.

        def hit(name: str) -> None:
            if not name.startswith("place."):
                link.pass_by()

        self.server.stores._resources.failpoints.hit = hit  # type: ignore[method-assign]

    def open(self, run: str, fmt: int, keep: int) -> int:
        """The handle of a run; it is opened when it is first asked for."""
        if (run, fmt) not in self.handles:
            answer = self.server.call(
                "open",
                state_dir=STATE,
                checkpoint_root=CHECKPOINT,
                operator=0,
                partition=0,
                name="default",
                run_id=run,
                format=fmt,
                min_versions_to_retain=keep,
                options=OPTIONS,
            )
            self.handles[run, fmt] = answer["handle"]
        return self.handles[run, fmt]

    def begin(self, handle: int, version: int, commit_id: str | None) -> Txn:
        """Begin a transaction of a new task, and read all rows of its base."""
        task = next(self._tasks)
        return Txn(self.server, self.server.call("begin", handle=handle, version=version, id=commit_id, attempt=task))

    def close_handles(self) -> None:
        """Give everything back, as an executor does with a store that it is not to keep."""
        handles, self.handles = self.handles, {}
        for handle in handles.values():
            self.server.call("close", handle=handle)

    def die_at(self, passes: int, *, in_threads: bool, keeps_disk: bool) -> None:
        """Let the server die in its next call, at the ``passes``-th point, or in what its threads do after that.

        What is on its disk at that moment is what its successor finds.
        """

        def happen() -> None:
            self._network.tell(f"      {self.name} dies here{' with its threads' * in_threads}")
            self.link.is_dying, self.link.is_dead = in_threads, not in_threads
            self._image = next(self._folders)
            if keeps_disk:
                shutil.copytree(self.server.stores.local_dir, self._image)

        self.meanwhile(passes, happen)

    def meanwhile(self, passes: int, happens: Callable[[], None]) -> None:
        """Let something happen in the middle of the next call, at the ``passes``-th point."""
        self.link.at_pass, self.link.passes_left = happens, passes

    @property
    def is_dead(self) -> bool:
        """Whether the server has died since it was started."""
        return self._image is not None

    def replace(self, *, keeps_disk: bool = True) -> None:
        """Start another server, on what the old one had on its disk at its death, or has now, or on nothing."""
        if self._image is None:
            self._image = next(self._folders)
            if keeps_disk:
                shutil.copytree(self.server.stores.local_dir, self._image)
        self.end()
        image, self._image = self._image, None
        self._start(image)

    def end(self) -> None:
        """Free what the server has."""
        self.link.is_dead, self.link.at_pass = True, None
        self.server.stores.shut_down()
        shutil.rmtree(self.server.stores.local_dir)
