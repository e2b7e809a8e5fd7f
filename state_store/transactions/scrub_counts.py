"""Results of scrubbing, that is of re-reading stored objects, for the metrics."""

from __future__ import annotations

import threading
from collections import Counter


class ScrubCounts:
    """Counts of scrubbed objects. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._damaged = 0

    def count(self, *, scrubbed: int = 0, healed: int = 0) -> None:
        """Add numbers of objects that were re-read and that were repaired."""
        with self._lock:
            self._counts.update(scrubbed_objects=scrubbed, healed_objects=healed)

    def note_damaged(self, objects: int) -> None:
        """Set how many objects are damaged now."""
        with self._lock:
            self._damaged = objects

    def take(self) -> dict[str, int]:
        """Return how many objects were re-read and repaired since the last call, and how many are damaged now."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return {
                **{name: counts[name] for name in ("scrubbed_objects", "healed_objects")},
                "damaged_objects": self._damaged,
            }
