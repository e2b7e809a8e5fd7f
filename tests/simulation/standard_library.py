"""The modules by which the engine meets time, chance and threads, on a scheduler.

The engine imports ``time``, ``threading``, ``uuid``, ``random``, ``concurrent.futures``, ``hashlib`` and ``xxhash`` as
any program does. ``replacing`` puts the classes and functions below in their place.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import xxhash
from typing_extensions import Self

from tests.simulation.scheduler import START_S, STARTED_S, Lock, Process, Scheduler, Task

_RealFuture: Any = concurrent.futures.Future


class Now:
    """The scheduler of the simulation that runs."""

    scheduler: Scheduler
    chance: random.Random
    checksums: dict[bytes, bytes]
    """What stands for each checksum."""

    @classmethod
    def begin(cls, scheduler: Scheduler, seed: object) -> None:
        """Begin a simulation."""
        cls.scheduler, cls.chance, cls.checksums = scheduler, random.Random(f"chance {seed}"), {}


def _scheduler() -> Scheduler:
    return Now.scheduler


class SimulatedTime:
    """The module ``time``."""

    def time(self) -> float:
        """Return the Unix time by the clock of the current process, which may be wrong."""
        return START_S + _scheduler().now_s + _scheduler().current.process.ahead_s

    def monotonic(self) -> float:
        """Return the seconds since the machine started."""
        return STARTED_S + _scheduler().now_s

    perf_counter = monotonic

    def clock_gettime(self, _clock: int) -> float:
        """Return the seconds since the machine started; the engine asks for no other clock."""
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let others go on for so long."""
        _scheduler().sleep(seconds)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - constants and conversions
        return getattr(time, name)


class SimulatedLock(Lock):
    """``threading.Lock``."""

    def __init__(self, *, guards_module: bool = False) -> None:
        """``guards_module``: what it guards outlasts a simulation. Then it is taken as often as others have left it."""
        self._owner: Task | None = None
        self._guards_module = guards_module

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as in Python
        """Take the lock; return whether it was taken."""
        scheduler = _scheduler()
        if not self._guards_module:
            scheduler.pass_by()
        while self._owner is not None:
            if self._owner.has_ended:  # a killed process
                raise AssertionError("a lock is held by a thread that has ended")
            timeout_s = None if timeout < 0 else timeout
            if not blocking or not scheduler.await_lock(self, self._owner, lambda: self._owner is None, timeout_s):
                return False
        self._owner = scheduler.current
        self._owner.holds.append(self)
        return True

    def release(self) -> None:
        """Give the lock up."""
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner.holds.remove(self)
        self._owner = None

    def locked(self) -> bool:
        """Return whether somebody has the lock."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedRLock(SimulatedLock):
    """``threading.RLock``, which only stores have."""

    is_prompt = True

    def __init__(self, *, guards_module: bool = False) -> None:
        super().__init__(guards_module=guards_module)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as in Python
        """Take the lock once more; return whether it was taken."""
        if self._owner is not _scheduler().current and not super().acquire(blocking, timeout):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Give the lock up once."""
        self._depth -= 1
        if self._depth == 0:
            super().release()


class SimulatedCondition:
    """``threading.Condition``."""

    def __init__(self, lock: SimulatedLock | None = None) -> None:
        self._lock = SimulatedRLock() if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: list[object] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody notifies."""
        me = object()
        self._waiting.append(me)
        self._lock.release()
        try:
            return _scheduler().wait(lambda: me not in self._waiting, timeout)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` is true."""
        until_s = None if timeout is None else _scheduler().now_s + timeout
        while not predicate():
            left_s = None if until_s is None else until_s - _scheduler().now_s
            if (left_s is not None and left_s <= 0) or not self.wait(left_s):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        """Wake some that wait."""
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Wake all that wait."""
        self._waiting.clear()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class SimulatedEvent:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait."""
        self._is_set = True

    def clear(self) -> None:
        """Unset the event."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set."""
        return self._is_set or _scheduler().wait(self.is_set, timeout)


class SimulatedLocal:
    """``threading.local``."""

    def _own(self) -> dict[str, Any]:
        return _scheduler().current.own.setdefault(id(self), {})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self._own()[name] = value

    def __delattr__(self, name: str) -> None:
        del self._own()[name]


class SimulatedThread:
    """``threading.Thread``."""

    def __init__(
        self, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "thread", **_: object
    ) -> None:
        self._function = lambda: target(*args)
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        """Begin."""
        self._task = _scheduler().spawn(self._function, self._name)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._task is not None and not self._task.has_ended

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        _scheduler().wait(lambda: not self.is_alive(), timeout)


class SimulatedThreading:
    """The module ``threading``."""

    Lock, RLock, Condition, Event = SimulatedLock, SimulatedRLock, SimulatedCondition, SimulatedEvent
    Thread, local = SimulatedThread, SimulatedLocal

    def get_ident(self) -> int:
        """Return the number of the current thread."""
        return id(_scheduler().current)


class SimulatedFuture(_RealFuture):  # type: ignore[misc]
    """``Future``, with waits that let others go on."""

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Return the result."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the failure."""
        self._await(timeout)
        failure: BaseException | None = super().exception(0)
        return failure

    def _await(self, timeout: float | None) -> None:
        if not self.done() and not _scheduler().wait(self.done, timeout):
            raise TimeoutError


class SimulatedExecutor:
    """``ThreadPoolExecutor``: at most so many tasks run at one time, each in the process of whoever submitted it."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "pool") -> None:
        self._max_workers = max_workers
        self._name = thread_name_prefix or "pool"
        self._running = 0
        self._left = 0
        self._is_shut_down = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> SimulatedFuture:  # noqa: ANN401
        """Begin a call."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = SimulatedFuture()
        self._left += 1

        def run() -> None:
            try:
                _scheduler().wait(lambda: self._running < self._max_workers)
                self._running += 1
                try:
                    if future.set_running_or_notify_cancel():
                        try:
                            result = function(*args, **named)
                        except Exception as problem:  # noqa: BLE001 - it belongs to whoever asks for the result
                            future.set_exception(problem)
                        else:
                            future.set_result(result)
                finally:
                    self._running -= 1
            finally:
                self._left -= 1

        _scheduler().spawn(run, self._name)
        return future

    def map(self, function: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
        """Begin all calls; yield their results in order."""
        futures = [self.submit(function, *each) for each in zip(*iterables, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002
        """Accept no more calls. Wait for those that have begun."""
        self._is_shut_down = True
        if wait and self._left:
            _scheduler().wait(lambda: self._left == 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def wait(
    futures: Iterable[SimulatedFuture],
    timeout: float | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> Any:  # noqa: ANN401 - the named tuple of the standard library
    given = set(futures)

    def is_over() -> bool:
        ended = [future.done() for future in given]
        return all(ended) or (return_when != concurrent.futures.ALL_COMPLETED and any(ended))

    if not is_over():
        _scheduler().wait(is_over, timeout)
    return concurrent.futures.wait(given, timeout=0, return_when=return_when)


def as_completed(futures: Iterable[SimulatedFuture], timeout: float | None = None) -> Iterator[SimulatedFuture]:
    left = list(futures)

    def some_have_ended() -> bool:
        return any(future.done() for future in left)

    while left:
        if not _scheduler().wait(some_have_ended, timeout):
            raise TimeoutError
        ended = [future for future in left if future.done()]
        left = [future for future in left if future not in ended]
        yield from ended


def uuid4() -> uuid.UUID:
    return uuid.UUID(int=Now.chance.getrandbits(128), version=4)


class SimulatedUuid:
    """The module ``uuid``."""

    UUID = uuid.UUID
    uuid4 = staticmethod(uuid4)


class SimulatedRandom:
    """The module ``random``."""

    Random = random.Random

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(Now.chance, name)


class SimulatedChecksum:
    """A checksum that follows from the seed, and differs wherever the real one does.

    RocksDB writes times and ids into table files, and the engine names objects by their checksums.
    """

    def __init__(self, real: Any) -> None:  # noqa: ANN401 - of one of two libraries
        self._real = real
        self.update = real.update

    def digest(self) -> bytes:
        """Return the checksum: the number of those that were met before it, spread out."""
        real: bytes = self._real.digest()
        known = Now.checksums
        if real not in known:
            known[real] = hashlib.sha512(f"checksum {len(known)}".encode()).digest()[: len(real)]
        return known[real]

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal digits."""
        return self.digest().hex()


class SimulatedHashlib:
    """The module ``hashlib``."""

    @staticmethod
    def sha256(data: bytes = b"") -> SimulatedChecksum:
        """Return a checksum of 256 bits."""
        return SimulatedChecksum(hashlib.sha256(data))


class SimulatedXxhash:
    """The module ``xxhash``."""

    @staticmethod
    def xxh3_128(data: bytes = b"") -> SimulatedChecksum:
        """Return a checksum of 128 bits."""
        return SimulatedChecksum(xxhash.xxh3_128(data))

    def xxh3_128_hexdigest(self, data: bytes) -> str:
        """Return a checksum of 128 bits in hexadecimal digits."""
        return self.xxh3_128(data).hexdigest()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - short ones, of rows
        return getattr(xxhash, name)


def wall_clock(scheduler: Scheduler, process: Process) -> Callable[[], float]:
    """Return the wall clock of a process."""
    return lambda: START_S + scheduler.now_s + process.ahead_s
