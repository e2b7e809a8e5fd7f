"""An executor whose local disk may be in trouble, and whose state lies in memory: only its disk is one."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from pyspark_ckpt.state_store.blobs import BlobPlace
from tests.faults.faulty_disk import Trouble, broken
from tests.labs.lab import Server, Txn
from tests.labs.memory_place import MemoryService

CHECKPOINT = "memory:/checkpoint"
NOW_S = 1_700_000_000.0
OPTIONS = {"retentionGracePeriod": "100s", "localCheckpoints": "1", "snapshotEveryVersions": "2"}


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


class FragileExecutor:
    """The state server that an executor has at present."""

    def __init__(self, folder: Path) -> None:
        """Keep local files below ``folder``."""
        self._folders = (folder / f"{number}" for number in count())
        self._tasks = count()
        self._service = MemoryService(lambda: NOW_S)
        self._start()

    def _start(self) -> None:
        def place(uri: str, *_: object) -> BlobPlace:
            return self._service.place(uri)

        self.server = FragileServer(next(self._folders), OPTIONS, place, lambda: NOW_S)
        self._handle: int | None = None

    @property
    def handle(self) -> int:
        """The handle of a run, which keeps ten versions. It is opened when it is first asked for."""
        if self._handle is None:
            answer = self.server.call(
                "open", state_dir=f"{CHECKPOINT}/state/0/0", checkpoint_root=CHECKPOINT, operator=0, partition=0,
                name="default", run_id="run-1", format=2, min_versions_to_retain=10, options=OPTIONS,
            )  # fmt: skip
            self._handle = answer["handle"]
        return self._handle

    def begin(self, handle: int, version: int, commit_id: str | None) -> Txn:
        """Begin a transaction of a new task, and read all rows of its base."""
        task = next(self._tasks)
        return Txn(self.server, self.server.call("begin", handle=handle, version=version, id=commit_id, attempt=task))

    def lose(self) -> None:
        """Start another server on an empty disk."""
        self.end()
        self._start()

    def end(self) -> None:
        """Free what the server has."""
        self.server.stores.shut_down()
