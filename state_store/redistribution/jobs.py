"""Run many independent tasks of offline work: in this process, in processes of this machine, or on another runner.

A task is a function without arguments that can be pickled, and has a key. If results are recorded in a place, a
finished task is not run again. A second run therefore finishes an interrupted job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from pyspark_ckpt.state_store.checkpoints.folder_kind import read_unfinished_request
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import RandomId, seal
from pyspark_ckpt.state_store.local.worker_process import Task, Worker

T = TypeVar("T")

DONE_FOLDER = "_ckpt/restore/done"
SMALL_BYTES = 16 << 20
"""A job that moves less than this runs in this process: starting others takes longer."""
MAX_BYTES = 64 << 20
COPIES = 8


Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished tasks and the number of all tasks."""


class Runner(Protocol):
    """Runs tasks, ``width`` at once."""

    @property
    def width(self) -> int:
        """At least 1."""
        ...

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """Run them in any order; return their results in the order of the tasks. Raises the error of a task."""
        ...


@dataclass(frozen=True)
class RecordedTask:
    """A task whose result, of the type ``kind``, is kept in the restore target at ``url`` until the job is done.

    ``request``: the digest of the restore's request in the mark there. The results of others are not used.
    """

    workplace: Workplace
    task: Task
    url: str
    kind: Any
    request: str

    @property
    def key(self) -> str:
        """The key of the task."""
        return self.task.key

    def __call__(self) -> Any:  # noqa: ANN401 - see Task
        """Return the recorded result, or run the task. Raises the task's error, StorageError, FormatError."""
        place, name = self.workplace.place(self.url), f"{DONE_FOLDER}/{self.key}.json"
        kind: Any = _Done.__class_getitem__(self.kind)  # type: ignore[attr-defined]  # known at run time alone
        with suppress(NotFoundError):
            done = read_sealed(place, name, kind, MAX_BYTES)
            if done.request == self.request:
                return done.result
        result = self.task()
        if read_unfinished_request(place) == self.request:  # else the target is another's now, as the job will find
            place.put(name, seal(_Done(result, self.request)))
        return result


class _Done(msgspec.Struct, Generic[T], forbid_unknown_fields=True):
    result: T
    request: RandomId = ""


class RunHere:
    """A runner that runs one task after the other in this process."""

    width = 1

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """See Runner."""
        results = []
        for number, task in enumerate(tasks):
            progress(number, len(tasks))
            results.append(task())
        progress(len(tasks), len(tasks))
        return results


class CopyHere:
    """A runner for tasks that copy, and mostly wait for places and disks: many at once, in threads of this process."""

    width = COPIES

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """See Runner."""
        with ThreadPoolExecutor(self.width) as pool:
            running = [pool.submit(task) for task in tasks]
            try:
                for done, future in enumerate(as_completed(running), 1):
                    future.result()
                    progress(done, len(tasks))
            finally:
                pool.shutdown(cancel_futures=True)
        return [future.result() for future in running]


@dataclass(frozen=True)
class LocalProcesses:
    """A runner on the processors of this machine."""

    width: int = os.cpu_count() or 1

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """See Runner. Raises ProcessError if a process dies. An interrupt ends the processes."""
        if not tasks:
            return []
        results: dict[int, Any] = {}
        waiting = list(enumerate(tasks))[::-1]
        workers: list[Worker] = []

        def work() -> None:
            with closing(Worker()) as worker:
                workers.append(worker)
                while waiting:
                    try:
                        number, task = waiting.pop()
                    except IndexError:  # another thread was quicker
                        return
                    results[number] = worker.run(task)
                    progress(len(results), len(tasks))

        progress(0, len(tasks))
        with ThreadPoolExecutor(min(self.width, len(tasks))) as pool:
            try:
                for future in as_completed([pool.submit(work) for _ in range(min(self.width, len(tasks)))]):
                    future.result()
            except Exception:  # start no more tasks
                waiting.clear()
                raise
            except BaseException:  # Ctrl-C, which a notebook sends to this process alone
                waiting.clear()
                for worker in workers:
                    worker.interrupt()
                raise
        return [results[number] for number in range(len(tasks))]
