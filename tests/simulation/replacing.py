"""Put simulated objects in the place of real ones, in the modules of the engine and nowhere else.

A place is what a module imported, a default of a parameter, and a lock that a module made when it was imported.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import xxhash

from tests.simulation.scheduler import Scheduler
from tests.simulation.standard_library import (
    Now,
    SimulatedCondition,
    SimulatedEvent,
    SimulatedExecutor,
    SimulatedFuture,
    SimulatedHashlib,
    SimulatedLocal,
    SimulatedLock,
    SimulatedRandom,
    SimulatedRLock,
    SimulatedThread,
    SimulatedThreading,
    SimulatedTime,
    SimulatedUuid,
    SimulatedXxhash,
    as_completed,
    uuid4,
    wait,
)

_Lock, _RLock = type(threading.Lock()), type(threading.RLock())
_TIME, _THREADING = SimulatedTime(), SimulatedThreading()
_MEANT: dict[int, Any] = {
    id(real): simulated
    for real, simulated in (
        (time, _TIME),
        (threading, _THREADING),
        (uuid, SimulatedUuid()),
        (random, SimulatedRandom()),
        (hashlib, SimulatedHashlib()),
        (xxhash, SimulatedXxhash()),
        (time.time, _TIME.time),
        (time.monotonic, _TIME.monotonic),
        (time.sleep, _TIME.sleep),
        (uuid.uuid4, uuid4),
        (threading.Lock, SimulatedLock),
        (threading.RLock, SimulatedRLock),
        (threading.Event, SimulatedEvent),
        (threading.Condition, SimulatedCondition),
        (threading.Thread, SimulatedThread),
        (concurrent.futures.ThreadPoolExecutor, SimulatedExecutor),
        (concurrent.futures.Future, SimulatedFuture),
        (concurrent.futures.wait, wait),
        (concurrent.futures.as_completed, as_completed),
    )
}


def _simulate(value: object) -> Any:  # noqa: ANN401
    """Return what takes the place of a value of the engine; the value itself if nothing does."""
    if id(value) in _MEANT:
        return _MEANT[id(value)]
    if isinstance(value, threading.local):
        return SimulatedLocal()
    if isinstance(value, _Lock):
        return SimulatedLock(guards_module=True)
    if isinstance(value, _RLock):
        return SimulatedRLock(guards_module=True)
    if isinstance(value, threading.Event):
        return SimulatedEvent()
    return value


class Slots:
    """All places in the modules of a package where a simulated object takes the place of a real one."""

    def __init__(self, package: str) -> None:
        """Look through the imported modules of ``package``."""
        self._found: list[tuple[Callable[[Any], None], Any, Any]] = []
        self._seen: set[int] = set()
        for name, module in sorted(sys.modules.items()):
            if name == package or name.startswith(f"{package}."):
                self._look_into(module, package)

    def _look_into(self, module: ModuleType, package: str) -> None:
        for name, value in list(vars(module).items()):
            self._note(partial(setattr, module, name), value)
            if str(getattr(value, "__module__", "")).startswith(package):
                self._look_at(value)
                self._look_at_attributes(value)

    def _look_at_attributes(self, value: object) -> None:
        """Look at an object that a module made when it was imported."""
        if not isinstance(value, (type, FunctionType)):
            for name, each in list(getattr(value, "__dict__", {}).items()):
                self._note(partial(object.__setattr__, value, name), each)  # of a frozen one, too

    def _look_at(self, value: object) -> None:
        """Look at a function, or at the functions of a class."""
        value = getattr(value, "__wrapped__", value)
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, type):
            for each in list(vars(value).values()):
                self._look_at(each.__func__ if isinstance(each, (classmethod, staticmethod)) else each)
        elif isinstance(value, FunctionType):
            self._look_at_defaults(value)

    def _look_at_defaults(self, function: FunctionType) -> None:
        defaults, named = function.__defaults__ or (), function.__kwdefaults__ or {}
        if any(_simulate(each) is not each for each in defaults):
            new = tuple(_simulate(each) for each in defaults)
            self._found.append((lambda value: setattr(function, "__defaults__", value), defaults, new))
        for name, value in named.items():
            self._note(partial(named.__setitem__, name), value)
        for cell in function.__closure__ or ():
            self._look_at_cell(cell)

    def _look_at_cell(self, cell: CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # empty
            return
        self._note(lambda new: setattr(cell, "cell_contents", new), value)
        if isinstance(value, FunctionType):
            self._look_at(value)

    def _note(self, put: Callable[[Any], None], value: object) -> None:
        simulated = _simulate(value)
        if simulated is not value:
            self._found.append((put, value, simulated))

    def fill(self) -> None:
        """Put the simulated objects into all places."""
        for put, _, simulated in self._found:
            put(simulated)

    def restore(self) -> None:
        """Put the real objects back."""
        for put, real, _ in reversed(self._found):
            put(real)


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module or a class for a while."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def installed(slots: Slots, scheduler: Scheduler, seed: object) -> Iterator[None]:
    """Let the engine meet the world through ``scheduler``; ids and other chance follow from ``seed``."""
    Now.begin(scheduler, seed)
    slots.fill()
    try:
        yield
    finally:
        slots.restore()
