"""Clients of S3: one for each set of settings, for as long as it is used, so that keys may keep changing.

A client that a place holds does not change. The last few used clients are kept even if no place holds them, because
places come and go and a client is slow to make. What all clients share, above all the description of the service, is
in memory once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import boto3
from botocore.session import Session

from pyspark_ckpt.state_store.s3_settings import S3Settings

CLIENTS_KEPT = 4
"""Clients that are kept although no place holds them."""

_loading = threading.Lock()
_loader: list[Any] = []


class Clients:
    """Clients by settings. Safe to use from many threads."""

    def __init__(self, make: Callable[[S3Settings], Any]) -> None:
        """Use ``make`` to make a client that is missing."""
        self._make = make
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[S3Settings, Any] = WeakValueDictionary()
        self._last: OrderedDict[S3Settings, Any] = OrderedDict()

    def get(self, settings: S3Settings) -> Any:  # noqa: ANN401 - boto3 has no types
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


def new_session() -> boto3.session.Session:
    """Return a new session with its own credentials. All sessions share the loaded description of the service."""
    session = Session()
    with _loading:
        if not _loader:
            _loader.append(session.get_component("data_loader"))
    session.register_component("data_loader", _loader[0])
    return boto3.session.Session(botocore_session=session)
