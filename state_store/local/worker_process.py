"""A process that runs tasks, one after the other, for the process that has started it, and ends with it.

It ends also in the middle of a task, however the other process has ended: what it would go on to write may lie in a
folder that somebody else has by then.

A task is a function without arguments that can be pickled, and has a key.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol

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


_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from pyspark_ckpt.state_store.local.worker_process import main; main(int(sys.argv[1]))"
)
"""Finds modules where the process does that has started it: no file of the working folder stands for one of Python."""


class Worker:
    """A process that runs tasks: the program of the caller is not imported there, as multiprocessing would."""

    def __init__(self) -> None:
        """Start it."""
        self._tasks, theirs = Pipe()
        command = [
            sys.executable,
            "-c",
            _PROGRAM,
            str(theirs.fileno()),
            *filter(None, sys.path),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
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


def main(descriptor: int) -> None:
    """Run the tasks that come in through a descriptor, until there are no more or their sender has gone."""
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_sender, args=(descriptor,), name="sender-watch", daemon=True).start()
    try:
        serve(Connection(descriptor))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself


def _end_with_sender(descriptor: int) -> None:
    """Stop what the process does, as a signal would, when the other end is closed."""
    watch = select.poll()
    watch.register(descriptor, 0)  # nothing but its end
    watch.poll()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # wakes it, too


def _end(*_: object) -> NoReturn:
    """Leave the task: what it has begun is cleaned up."""
    sys.exit(1)
