"""Tasks that run one at a time, on a virtual clock. A seed decides who goes on at each wait.

A task is a greenlet: ordinary code that lets others go on only where it calls the scheduler. The standard library of
the engine does that in a simulation (``standard_library``): at each lock, sleep, future and request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import greenlet  # type: ignore[import-untyped]

START_S = 1_700_000_000.0
"""When every simulation begins, as Unix time."""
STARTED_S = 5_000.0
"""How long the machines have been running by then."""
MAX_SWITCHES = 2_000_000
MOMENT_S = 1e-6
"""Less than any wait takes: the clock goes on only when nobody is ready."""


class Killed(BaseException):
    """The process of this task is dead. No code of the engine runs on, except to free its memory."""


class StuckError(AssertionError):
    """Every task waits for another one, or the tasks never end."""


class Process:
    """A process of a simulated machine. ``ahead_s``: how far its wall clock is ahead of the true time."""

    def __init__(self, name: str, ahead_s: float = 0.0) -> None:
        """Begin as a process that runs."""
        self.name = name
        self.ahead_s = ahead_s
        self.is_dead = False
        self.asleep_until_s = -math.inf
        self.has_slept = False
        self.only_reads = False
        """Whether it has no right to write to the place."""
        self.has_threads = False
        """Whether its tasks share objects, and may lose their turn anywhere."""
        self._requests_left = 0
        self._then: Callable[[], object] | None = None

    def after_requests(self, count: int, then: Callable[[], object]) -> None:
        """Call ``then`` when the process makes its next request but ``count``, instead of what it was to call."""
        self._requests_left, self._then = count, then

    def note_request(self) -> None:
        """Note that the process makes a request."""
        self._requests_left -= 1
        if self._requests_left < 0 and self._then is not None:
            then, self._then = self._then, None
            then()

    def sleep_until(self, instant_s: float) -> None:
        """Let none of its tasks go on until then, as on a machine that is overloaded or suspended."""
        self.asleep_until_s, self.has_slept = instant_s, True

    def __str__(self) -> str:
        """Return the name."""
        return self.name


class Lock:
    """A lock of the engine. ``is_prompt``: nobody may hold it while a request is answered."""

    is_prompt = False


class Task:
    """One thread of a process."""

    def __init__(self, process: Process, name: str, greenlet_: greenlet.greenlet) -> None:
        """Begin as ready."""
        self.process = process
        self.name = name
        self.greenlet = greenlet_
        self.is_ready: Callable[[], object] | None = None
        self.until_s = -math.inf
        self.own: dict[int, dict[str, Any]] = {}
        """The values of the task in each ``threading.local``."""
        self.holds: list[Lock] = []
        self.awaits: Lock | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the task has returned or failed."""
        return bool(self.greenlet.dead)

    def __str__(self) -> str:
        """Return the form used in schedules."""
        return f"{self.process}/{self.name}"


class Scheduler:
    """The only scheduler of a simulation."""

    def __init__(self, seed: object) -> None:
        """Let ``seed`` decide."""
        self.draw = random.Random(f"schedule {seed}")
        self.now_s = 0.0
        """The time since the simulation began."""
        self.switches = 0
        self.pass_chance = self.draw.choice((0.0, 0.02, 0.1, 0.5))
        """How probable it is that others go on at a point where nobody has to wait."""
        self._tasks: dict[greenlet.greenlet, Task] = {}
        self._hub = greenlet.getcurrent()
        self._outside = Task(Process("outside"), "outside", self._hub)
        self.current = self._outside
        """The task that runs now. Before and after the simulation, that is one which nobody else waits for."""
        self._failure: BaseException | None = None

    def spawn(self, function: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Begin a task, by default in the process of the current one."""
        process = process or self.current.process
        own = greenlet.greenlet(lambda: self._run(function, process), parent=self._hub)
        task = self._tasks[own] = Task(process, name, own)
        return task

    def _run(self, function: Callable[[], object], process: Process) -> None:
        try:
            if not process.is_dead:
                function()
        except Killed:
            pass
        except BaseException as problem:  # noqa: BLE001 - it ends the simulation
            self._failure = self._failure or problem

    def pass_by(self) -> None:
        """Be at a point where others may go on first."""
        if self.current.process.is_dead:
            raise Killed
        if self.current is not self._outside and self.pass_chance and self.draw.random() < self.pass_chance:
            self.wait(None)

    def lose_turn(self, chance: float) -> None:
        """Be between two steps of code, where others go on first with this probability: some, or until all wait."""
        process = self.current.process
        if process.has_threads and not process.is_dead and self.draw.random() < chance:
            self.wait(_not_yet, self.draw.choice((0.0, MOMENT_S)))

    def sleep(self, seconds: float) -> None:
        """Let others go on for so long, as while a place answers."""
        self._require_promptness(self.current)
        self.wait(_never, seconds)

    def await_lock(self, lock: Lock, owner: Task, is_free: Callable[[], object], timeout_s: float | None) -> bool:
        """Let others go on until ``owner`` has given up ``lock``. Return False after ``timeout_s``."""
        task = self.current
        task.awaits = lock
        try:
            if owner.is_ready is _never:
                self._require_promptness(owner)
            return self.wait(is_free, timeout_s)
        finally:
            task.awaits = None

    def _require_promptness(self, sleeper: Task) -> None:
        """Fail if a lock that is prompt is held by a task that sleeps, or by one that waits for such a task."""
        late = [sleeper]
        for each in late:
            late += [task for task in self._tasks.values() if task.awaits in each.holds and task not in late]
            if any(lock.is_prompt for lock in each.holds):
                raise AssertionError(f"a lock that is held for moments only waits for a request: {each}")

    def wait(self, is_ready: Callable[[], object] | None, timeout_s: float | None = None) -> bool:
        """Let others go on until ``is_ready`` is true; at once, if it is None. Return False after ``timeout_s``."""
        task = self.current
        if task.process.is_dead:
            raise Killed
        task.is_ready = is_ready
        task.until_s = math.inf if timeout_s is None else self.now_s + max(0.0, timeout_s)
        self._hub.switch()
        if task.process.is_dead:
            raise Killed
        return is_ready is None or bool(is_ready())

    def kill(self, process: Process) -> None:
        """End a process. Its tasks, the current one among them, end where they wait."""
        process.is_dead = True

    def run(self, main: Callable[[], object]) -> None:
        """Run ``main`` as a task of its own, until it ends. Raises the first failure of any task."""
        task = self.spawn(main, "main", Process("world"))
        try:
            while not task.has_ended and self._failure is None:
                self._step()
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _step(self) -> None:
        ready, untils_s, now_s = [], [], self.now_s
        for task in list(self._tasks.values()):
            if task.process.is_dead:
                self._switch(task)
                return
            if task.process.asleep_until_s > now_s:
                untils_s.append(task.process.asleep_until_s)
            elif task.is_ready is None or task.until_s <= now_s or task.is_ready():
                ready.append(task)
            else:
                untils_s.append(task.until_s)
        if ready:
            self.switches += 1
            if self.switches > MAX_SWITCHES:
                raise StuckError(f"The tasks have not ended after {MAX_SWITCHES} switches: {self.describe()}")
            self._switch(ready[0] if len(ready) == 1 else self.draw.choice(ready))
        elif (next_s := min(untils_s, default=math.inf)) < math.inf:
            self.now_s = next_s
        else:
            raise StuckError(f"Every task waits for another one: {self.describe()}")

    def _switch(self, task: Task) -> None:
        self.current = task
        task.greenlet.switch()
        self.current = self._outside
        if task.has_ended:
            del self._tasks[task.greenlet]

    def _end(self) -> None:
        for task in list(self._tasks.values()):
            task.process.is_dead = True
        while self._tasks:
            self._switch(next(iter(self._tasks.values())))

    def describe(self) -> str:
        """Return the tasks that are left."""
        return ", ".join(map(str, self._tasks.values()))


def _never() -> bool:
    return False


def _not_yet() -> bool:
    return False
