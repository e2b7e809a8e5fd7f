"""A process that runs tasks one after another for the process that started it, and ends with that process.

However the other process ends, this one ends at once, even in the middle of a task: another process may by then own the
folder into which the task writes. A task that swallows the exit is given MAX_EXIT_S.

A task is a function without arguments that can be pickled and has a key.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

from pyspark_ckpt.state_store.errors import CkptError, ProcessError


class Task(Protocol):
    """A piece of work. ``key`` is unique within its job."""

    @property
    def key(self) -> str:
        """Return a name of ASCII letters, digits, ``_``, ``.`` and ``-``."""
        ...

    def __call__(self) -> Any:  # noqa: ANN401 - each kind of task has its own result
        """Run the task."""
        ...


_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from pyspark_ckpt.state_store.local.worker_process import main; main(int(sys.argv[1]))"
)
"""Uses the ``sys.path`` of the parent process, so that no file in the working folder shadows a Python module.

If that path has the working folder, as in an interactive Python, modules are looked for there last: users' functions
may come from such modules.
"""

MAX_EXIT_S = 10
"""How long a process may take to clean up after its sender has gone."""
_LOOK_S = 0.5
_swallowed = threading.Event()
_signals: list[int] = []
"""The signals that have ended this process: a handler may not wait for the lock of an Event."""


class WorkerEnd(SystemExit):
    """Ends a process in the middle of a task: it is not an error of the task."""


Outcome: TypeAlias = tuple[Any, CkptError | None]
"""The result of a task, or the error that it has raised."""


def run_task(task: Task) -> Outcome:
    """Run a task while another process waits for its outcome."""
    try:
        return task(), None
    except CkptError as problem:
        return None, problem


def take_results(outcomes: Iterable[Outcome]) -> list[Any]:
    """Return the results. Raises the first error."""
    results = []
    for result, problem in outcomes:
        if problem is not None:
            raise problem
        results.append(result)
    return results


class Worker:
    """A process that runs tasks. Unlike multiprocessing, it does not import the program of the caller."""

    def __init__(self) -> None:
        """Start the process."""
        self._tasks, theirs = Pipe()
        command = [
            sys.executable,
            "-c",
            _PROGRAM,
            str(theirs.fileno()),
            *filter(None, sys.path),
            *([str(Path.cwd())] if "" in sys.path else []),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """Let the idle process end, and wait for it."""
        self._tasks.close()
        self._process.wait()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def interrupt(self) -> None:
        """Let the process end in the middle of a task, as if this one had ended. ``run`` raises ProcessError then."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._tasks.fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def run(self, task: Task) -> Any:  # noqa: ANN401 - see Task
        """Run a task and return its result. Raises the task's error, or ProcessError if the process dies."""
        try:
            self._tasks.send(task)
            result, problem = self._receive()
        except (OSError, EOFError) as gone:
            raise ProcessError(
                f"The process that ran {task.key} has ended (status {self._process.wait()}).",
                hint="If it ran out of memory, free some on this machine. Then run the same command again.",
                retryable=True,
            ) from gone
        if problem is not None:
            raise problem
        return result

    def _receive(self) -> Outcome:
        """Wait for the outcome of a task. Raises OSError and EOFError if the process dies.

        The process's end is watched, too: processes that it has forked keep the connection open.
        """
        while not self._tasks.poll(_LOOK_S):
            if self._process.poll() is not None and not self._tasks.poll():
                raise EOFError
        outcome: Outcome = self._tasks.recv()
        return outcome


def serve(tasks: Connection) -> None:
    """Run the tasks from a connection until it ends."""
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        tasks.send(run_task(task))


def main(descriptor: int) -> None:
    """Run the tasks from a descriptor until there are no more or their sender has gone."""
    signal.signal(signal.SIGTERM, _end)
    sys.unraisablehook = _note_unraisable
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # Ctrl-C goes to all processes of a terminal
        signal.signal(signal.SIGINT, _end)
    threading.Thread(target=_end_with_sender, args=(descriptor,), name="sender-watch", daemon=True).start()
    threading.Thread(target=_end_again, name="swallowed-exits", daemon=True).start()
    tasks = Connection(descriptor)  # freed after the signal is ignored: an exception in its __del__ would be printed
    try:
        serve(tasks)
    except Exception:  # an exit in the middle of an import, for example, may become another error
        if not _signals:
            raise
        sys.exit(1)
    finally:
        for ends in (signal.SIGTERM, signal.SIGINT):  # the process is ending
            signal.signal(ends, signal.SIG_IGN)


def _end_with_sender(descriptor: int) -> None:
    """Stop the process, as a signal would, when the other end is closed."""
    watch = select.poll()
    watch.register(descriptor, 0)  # only the end of the connection
    watch.poll()
    _interrupt_main_thread()
    time.sleep(MAX_EXIT_S)
    os._exit(1)  # `except:` in a function of a user has swallowed the exit


def _end_again() -> None:
    """Repeat the signal each time that Python has swallowed the exit."""
    while True:
        _swallowed.wait()
        _swallowed.clear()
        _interrupt_main_thread()


def _interrupt_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # also wakes the thread


def _note_unraisable(problem: sys.UnraisableHookArgs) -> None:
    """Notice that Python has swallowed the exit, as it does with any exception in a ``__del__``."""
    if issubclass(problem.exc_type, SystemExit):
        _swallowed.set()
    else:
        sys.__unraisablehook__(problem)


def _end(number: int, *_: object) -> NoReturn:
    """Leave the task, which cleans up after itself."""
    _signals.append(number)
    raise WorkerEnd(1)
