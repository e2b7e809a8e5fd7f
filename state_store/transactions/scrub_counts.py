"""What reading stored objects again came to, for the metrics."""

from __future__ import annotations

import threading
from collections import Counter


class ScrubCounts:
    """What scrubbing came to. Safe to use from many threads."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._damaged = 0

    def count(self, *, scrubbed: int = 0, healed: int = 0) -> None:
        """Add objects that were read, and that were put right."""
        with self._lock:
            self._counts.update(scrubbed_objects=scrubbed, healed_objects=healed)

    def note_damaged(self, objects: int) -> None:
        """So many objects are damaged now."""
        with self._lock:
            self._damaged = objects

    def take(self) -> dict[str, int]:
        """Objects that were read and put right since the last call, and those that are damaged now."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return {
                **{name: counts[name] for name in ("scrubbed_objects", "healed_objects")},
                "damaged_objects": self._damaged,
            }
