"""A process that runs tasks, one after the other, for the process that has started it, and ends with it.

A task is a function without arguments that can be pickled, and has a key.
"""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from pyspark_ckpt.state_store.errors import CkptError, StorageError


class Task(Protocol):
    """A piece of work; ``key`` names it among those of its job."""

    @property
    def key(self) -> str:
        """ASCII letters, digits, ``_``, ``.`` and ``-``."""
        ...

    def __call__(self) -> Any:  # noqa: ANN401 - each kind of task has its own result
        """Do it."""
        ...


class Worker:
    """A process that runs tasks: the program of the caller is not imported there, as multiprocessing would."""

    def __init__(self) -> None:
        """Start it."""
        self._tasks, theirs = Pipe()
        command = [sys.executable, "-m", "pyspark_ckpt.state_store.worker_process", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """Have the process end, which has nothing more to do."""
        self._tasks.close()
        self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the process runs no more."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()

    def run(self, task: Task) -> Any:  # noqa: ANN401 - see Task
        """The result of a task; raises what it raised, StorageError if the process dies."""
        try:
            self._tasks.send(task)
            result, problem = self._tasks.recv()
        except (OSError, EOFError) as gone:
            raise StorageError(
                f"The process that ran {task.key} has ended (status {self._process.wait()}).",
                hint="It may have run out of memory or disk. Run the same command again: what is done is kept.",
            ) from gone
        if problem is not None:
            raise problem
        return result


def serve(tasks: Connection) -> None:
    """Run the tasks that come in, until there are no more."""
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        try:
            outcome: tuple[Any, Exception | None] = task(), None
        except CkptError as problem:
            outcome = None, problem
        tasks.send(outcome)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
