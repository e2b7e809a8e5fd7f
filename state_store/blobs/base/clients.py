"""Clients of services: one for each set of settings, for as long as it is used.

All places with equal settings share one client. The last few used clients are kept even if no place holds them, because
places come and go and a client is slow to make.

Credentials may change while a client is used: a file gets new keys, a token is revoked. If the service refuses the
credentials of a request, a client with newly found credentials replaces the old one, and the request is made once more.
However many requests are refused at one time, one of them looks for credentials, and the others use its result.

A forked process must not use its parent's connections: each would read answers to the other. It makes its own clients.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from pyspark_ckpt.state_store.log import LOGGER

CLIENTS_KEPT = 4
"""How many clients are kept although no place holds them."""
PAUSE_S = 1.0
"""Credentials that are new each time are asked for again after this time, so that errors do not cause many requests."""

S = TypeVar("S", bound=Hashable)
C = TypeVar("C")
T = TypeVar("T")
_log = logging.getLogger(f"{LOGGER}.places")


class SharedClient(Generic[C]):
    """The present client for one set of settings. Safe to use from many threads."""

    def __init__(self, client: C, make_other: Callable[[C, bool], C | None]) -> None:
        """Begin with ``client``. ``make_other``: as for ``Clients``."""
        self._client = client
        self._make_other = make_other
        self._looked = self._replaced = -math.inf
        self._is_untold = False
        self._lock = threading.Lock()

    def get(self) -> C:
        """Return the present client."""
        return self._client

    def renew(self, refused: C, failed: float) -> bool:
        """Return whether there is another client than ``refused``, with which a request failed at ``failed``.

        Raises the errors of making a client.
        """
        with self._lock:
            if self._client is refused and self._looked <= failed:
                self._looked = time.monotonic()
                other = self._make_other(refused, self._looked - self._replaced < PAUSE_S)
                if other is not None:
                    self._client, self._replaced, self._is_untold = other, self._looked, True
            return self._client is not refused

    def note_success(self, place: str) -> None:
        """Log, once, that a client which has replaced another one works. ``place`` is its name in the log."""
        with self._lock:
            if self._is_untold:
                self._is_untold = False
                _log.warning("%s has refused the credentials. Others were found and are used from now on", place)


class Clients(Generic[S, C]):
    """Clients by settings. Safe to use from many threads."""

    def __init__(self, make: Callable[[S], C], make_other: Callable[[S, C, bool], C | None]) -> None:
        """Use ``make`` to make a client that is missing, and ``make_other`` to replace one that is refused.

        ``make_other`` gets the settings and the refused client. It returns None if the credentials are still the same.
        Its last argument is true if the client itself replaced another within ``PAUSE_S``. Then it also returns None
        for credentials that are new each time.
        """
        self._make = make
        self._make_other = make_other
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[S, SharedClient[C]] = WeakValueDictionary()
        self._last: OrderedDict[S, SharedClient[C]] = OrderedDict()

    def get(self, settings: S) -> SharedClient[C]:
        """Return the client for these settings: the same for all that hold it at one time."""
        with self._lock:
            client = self._held.get(settings)
            if client is None:
                made = self._make(settings)
                client = self._held[settings] = SharedClient(made, partial(self._make_other, settings))
            self._last[settings] = client
            self._last.move_to_end(settings)
            while len(self._last) > CLIENTS_KEPT:
                self._last.popitem(last=False)
            return client


class Client(Generic[C]):
    """The client of one place, found when it is first needed, and again in a forked process."""

    def __init__(self, find: Callable[[], SharedClient[C]]) -> None:
        """Find the client by ``find``."""
        self._find = find
        self._found: tuple[int, SharedClient[C]] | None = None

    def get(self) -> C:
        """Return the client of this process."""
        return self._find_shared().get()

    def get_found(self) -> C | None:
        """Return the client of this process, if it has been found."""
        return self._found[1].get() if self._found is not None and self._found[0] == os.getpid() else None

    def ask(self, place: str, request: Callable[[], T], is_refused: Callable[[Exception], bool]) -> T:
        """Return the answer to ``request``, which uses ``get``. Repeat it once if its credentials were refused.

        Nothing is repeated while the credentials stay the same. ``place`` is its name in the log.
        """
        client = self.get()
        try:
            return request()
        except Exception as problem:
            if not is_refused(problem) or not self._find_shared().renew(client, time.monotonic()):
                raise
        answer = request()
        self._find_shared().note_success(place)
        return answer

    def _find_shared(self) -> SharedClient[C]:
        found = self._found
        if found is None or found[0] != os.getpid():
            found = self._found = os.getpid(), self._find()
        return found[1]
