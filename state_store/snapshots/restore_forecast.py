"""Forecast how long a restore takes, from this process's measurements of its place and its disk.

::

    3 requests (listing, manifest, first file) + bytes / rate + deltas / 8 requests + deltas * ingest

All parts are running means. The time of a request is that of uploading a small delta. The rate comes from restores and
snapshots. The time of an ingest comes from the ingest after each commit, and from restores. Defaults are used until
something is measured.
"""

from __future__ import annotations

import math
import threading

from pyspark_ckpt.state_store.snapshots.lag import SnapshotLag

REQUESTS_IN_A_ROW = 3
REQUESTS_AT_ONCE = 8
SMALL_BYTES, LARGE_BYTES = 1 << 20, 4 << 20
NEWEST_COUNTS = 0.3


class RestoreForecast:
    """Running means of one process. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start with the defaults: 50 ms per request, 50 MB/s and 10 ms per ingest."""
        self._lock = threading.Lock()
        self._request_s, self._bytes_per_s, self._ingest_s = 0.05, 50e6, 0.01

    @property
    def request_s(self) -> float:
        """How long a request takes."""
        with self._lock:
            return self._request_s

    def note_write(self, size_bytes: int, took_s: float) -> None:
        """Note that an object was written in ``took_s``. Only small objects count: they show the time of a request."""
        if size_bytes <= SMALL_BYTES:
            with self._lock:
                self._request_s += NEWEST_COUNTS * (took_s - self._request_s)

    def note_transfer(self, size_bytes: int, took_s: float) -> None:
        """Note a transfer of ``size_bytes`` in ``took_s``. Small transfers show no rate and are ignored."""
        if size_bytes >= LARGE_BYTES and took_s > 0:
            with self._lock:
                self._bytes_per_s += NEWEST_COUNTS * (size_bytes / took_s - self._bytes_per_s)

    def note_ingest(self, deltas: int, took_s: float) -> None:
        """Note that a number of ``deltas`` was applied to a database in ``took_s``."""
        if deltas:
            with self._lock:
                self._ingest_s += NEWEST_COUNTS * (took_s / deltas - self._ingest_s)

    def snapshot_s(self, size_bytes: int) -> float:
        """Return the seconds to restore a snapshot of ``size_bytes``."""
        return REQUESTS_IN_A_ROW * self._request_s + size_bytes / self._bytes_per_s

    def deltas_s(self, lag: SnapshotLag) -> float:
        """Return the seconds to fetch and apply the deltas after the snapshot."""
        fetch_s = math.ceil(lag.deltas / REQUESTS_AT_ONCE) * self._request_s + lag.delta_bytes / self._bytes_per_s
        return fetch_s + lag.deltas * self._ingest_s
