"""Clients of services: one for each set of settings, for as long as it is used, so that keys may keep changing.

A client that a place holds does not change. The last few used clients are kept even if no place holds them, because
places come and go and a client is slow to make.

A process that is forked must not use the connections of its parent: each would read answers to the other. It makes
clients of its own.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

CLIENTS_KEPT = 4
"""Clients that are kept although no place holds them."""

S = TypeVar("S", bound=Hashable)
C = TypeVar("C")


class Clients(Generic[S, C]):
    """Clients by settings. Safe to use from many threads."""

    def __init__(self, make: Callable[[S], C]) -> None:
        """Use ``make`` to make a client that is missing."""
        self._make = make
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[S, C] = WeakValueDictionary()
        self._last: OrderedDict[S, C] = OrderedDict()

    def get(self, settings: S) -> C:
        """Return the client for these settings, the same for all that hold it at one time."""
        with self._lock:
            client = self._held.get(settings)
            if client is None:
                client = self._held[settings] = self._make(settings)
            self._last[settings] = client
            self._last.move_to_end(settings)
            while len(self._last) > CLIENTS_KEPT:
                self._last.popitem(last=False)
            return client


class Client(Generic[C]):
    """The client of one place, which is found when it is needed first, and again in a process that is forked."""

    def __init__(self, find: Callable[[], C]) -> None:
        """Find the client by ``find``."""
        self._find = find
        self._found: tuple[int, C] | None = None

    def get(self) -> C:
        """Return the client of this process."""
        client = self.get_found()
        if client is None:
            client = self._find()
            self._found = os.getpid(), client
        return client

    def get_found(self) -> C | None:
        """Return the client of this process, if it was found already."""
        return self._found[1] if self._found is not None and self._found[0] == os.getpid() else None
