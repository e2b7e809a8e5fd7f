"""An executor of a simulated cluster: a process with a state server, a local disk, and tasks."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pyspark_ckpt.state_store.errors import CkptError, FormatError
from tests.faults.faulty_disk import mended
from tests.labs.lab import Server, Txn
from tests.simulation.flipped_bits import flip_bit
from tests.simulation.scheduler import STARTED_S, Process, Scheduler, Task
from tests.simulation.standard_library import wall_clock

T = TypeVar("T")


class LostError(Exception):
    """The process that was asked is dead, and nobody knows how far it came."""


@dataclass(frozen=True)
class Run:
    """One run of a query, as its driver tells it to executors."""

    id: str
    format: int
    epoch: int
    keep: int


class Executor:
    """A name, and the process that has it at present."""

    def __init__(self, name: str, folder: Path, scheduler: Scheduler, options: Mapping[str, str], seed: object) -> None:
        """Keep local files below ``folder``."""
        self.name = name
        self._scheduler = scheduler
        self._options = options
        self._seed = seed
        self._folders = (folder / f"{name}-{number}" for number in count())
        self._tasks = count()
        self._dead: list[Server] = []
        self._starting: set[Process] = set()
        self._start(next(self._folders))

    def _start(self, local_dir: Path) -> None:
        self.process = Process(local_dir.name)
        self.process.has_threads = True
        self._local_dir = local_dir
        self.server: Server | None = None
        self.handles: dict[tuple[str, int], int] = {}

    def call(self, what: str, function: Callable[[Server], T]) -> T:
        """Return what ``function`` returns in the process of the executor. Raises LostError, and what it raises."""
        process, outcome = self.process, list[Any]()

        def work() -> None:
            try:
                outcome.append((function(self._running(process)), None))
            except Exception as problem:  # noqa: BLE001 - it is raised where it was asked for
                outcome.append((None, problem))

        task = self._scheduler.spawn(work, what, process)
        self._scheduler.wait(lambda: task.has_ended or process.is_dead)
        if not outcome:
            raise LostError(f"{process} was killed")
        result, problem = outcome[0]
        if problem is not None:
            raise problem
        return result  # type: ignore[no-any-return]

    def begin(self, what: str, function: Callable[[Server], object]) -> Task:
        """Begin a call whose outcome nobody asks for."""
        process = self.process

        def work() -> None:
            with suppress(LostError):
                function(self._running(process))

        return self._scheduler.spawn(work, what, process)

    def _running(self, process: Process) -> Server:
        """Return the state server of this executor. The first call starts it."""
        ids, scheduler = random.Random(f"ids {self._seed} {process.name}"), self._scheduler
        if process in self._starting:
            scheduler.wait(lambda: process not in self._starting)
        if self.server is None:
            self._starting.add(process)
            try:
                self.server = Server(
                    self._local_dir,
                    self._options,
                    clock=wall_clock(scheduler, process),
                    uptime=lambda: STARTED_S + scheduler.now_s,
                    make_id=lambda: f"{ids.getrandbits(128):032x}",
                )
            except (OSError, CkptError) as problem:  # of the local disk
                raise LostError(f"the state server of {process} does not start: {problem}") from problem
            finally:
                self._starting.discard(process)
            self.server.stores._lock.is_prompt = True  # type: ignore[attr-defined]  # it is simulated
        return self.server

    @staticmethod
    def list_left_over(server: Server) -> list[str]:
        """Return what is left of transactions, now that all have ended. A scrub may keep a file beside theirs."""
        server.settled()
        staged, tickets = (server.stores.local_dir / name for name in ("staging", "tickets"))
        return sorted(
            str(path) for path in [*staged.iterdir(), *tickets.iterdir()] if not path.name.startswith("scrub-")
        )

    def open(self, server: Server, state_dir: str, checkpoint: str, partition: int, run: Run) -> int:
        """Return the handle of a run. The first call opens it."""
        key = (run.id, partition)
        if key not in self.handles:
            answer = server.call(
                "open", state_dir=state_dir, checkpoint_root=checkpoint, operator=0, partition=partition,
                name="default", run_id=run.id, format=run.format, epoch=run.epoch, min_versions_to_retain=run.keep,
                options=dict(self._options),
            )  # fmt: skip
            self.handles[key] = answer["handle"]
        return self.handles[key]

    def transaction(self, server: Server, handle: int, version: int, commit_id: str | None) -> Txn:
        """Begin a transaction of a new task, and read all rows of its base."""
        answer = server.call("begin", handle=handle, version=version, id=commit_id, attempt=next(self._tasks))
        try:
            return Txn(server, answer)
        except FormatError as problem:  # as the shim does: the copy is reported, and the task fails
            server.call("report_damage", txn=answer["txn"], failure=str(problem))
            server.call("abort", txn=answer["txn"])
            raise

    def rot(self, draw: random.Random) -> Path | None:
        """Change a byte of some table file on the disk; return the file."""
        tables = sorted(self._local_dir.rglob("*.sst"))
        if not tables:
            return None
        path = draw.choice(tables)
        content = flip_bit(path.read_bytes(), draw)
        with path.open("r+b") as file:  # in place: other names of the file have the same content
            file.write(content)
        return path

    def compact(self) -> None:
        """Merge table files; see the server."""
        if self.server is not None:
            self.server.compact()

    def kill(self, *, keeps_disk: bool) -> None:
        """Kill the process. Its successor has what was on the disk at this moment, or nothing."""
        image = next(self._folders)
        if keeps_disk and self._local_dir.exists():
            with mended():
                shutil.copytree(self._local_dir, image)
        self._scheduler.kill(self.process)
        self._dead += [] if self.server is None else [self.server]
        self._start(image)

    def free(self) -> None:
        """Close what the processes of this executor have open. The simulation is over."""
        for server in [*self._dead, *([] if self.server is None else [self.server])]:
            for shelf in server.stores._shelves.values():
                shelf.store.local.closed = True
                shelf.store.local.copies.close(remove=False)
            server.stores._folder.close()
