"""Pins: versions that somebody needs for longer than Spark does, for all stores of a checkpoint.

::

    <checkpoint>/_ckpt/pins/<version:020d>-<until, Unix time in ms:015d>-<id>.pin

Retention keeps every pinned version, and what it is made of, from the next clean-up on. So a pin is safe for a
version that Spark retains when it is made. It ends by itself, lest one whose owner has died holds everything for
ever; its owner renews it.

Who makes a pin and who looks at it may be two hosts: its end is written, and read, by the time of the place. Who finds
that one has ended by what he knows of that time asks the place, once, for its clock may have been set back. A pin that
has ended holds nothing; whoever finds it a day later deletes it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceClock, time_of

FOLDER = "_ckpt/pins"
LEFT_S = 86400.0
"""So long a pin that has ended stays: it is another's, who may still be there."""

_NAME = re.compile(r"([0-9]{20})-([0-9]{15})-([0-9a-f]{32})\.pin")


@dataclass(frozen=True)
class Pin:
    """A version that is kept until a time."""

    version: int
    until_s: float
    id: str

    @property
    def name(self) -> str:
        """Object name, below the checkpoint."""
        return f"{FOLDER}/{self.version:020d}-{round(self.until_s * 1000):015d}-{self.id}.pin"


class Pins:
    """The pins of one checkpoint."""

    def __init__(
        self,
        checkpoint: BlobPlace,
        clock: Callable[[], float] | None = None,
        exact_clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep pins in ``checkpoint``; ``clock`` is what is known of the time of that place, which is asked else.

        ``exact_clock`` asks the place each time.
        """
        self._place = checkpoint
        self._clock = clock or PlaceClock(checkpoint).now_s
        self._exact_clock = exact_clock or clock or (lambda: time_of(checkpoint))
        self._ended: set[str] = set()
        """The ids of pins that have ended by what the place has said itself."""

    def add(self, version: int, for_s: float) -> Pin:
        """Keep ``version`` for so long from now; durable after return. Raises StorageError."""
        pin = Pin(version, self._exact_clock() + for_s, uuid.uuid4().hex)
        self._place.put(pin.name, b"")
        return pin

    def has_ended(self, pin: Pin) -> bool:
        """Whether ``pin`` holds its version no longer. Raises StorageError."""
        return pin.until_s <= self._exact_clock()

    def renew(self, pin: Pin, for_s: float) -> Pin:
        """Keep the version of ``pin`` for so long from now, without a gap; the new pin takes its place."""
        renewed = self.add(pin.version, for_s)
        self.remove(pin)
        return renewed

    def remove(self, pin: Pin) -> None:
        """Give the version free. No error if the pin has ended. Raises StorageError."""
        self._place.delete(pin.name)

    def list_held(self, *, tidies: bool = True) -> list[Pin]:
        """All pins that have not ended, by version; who ``tidies`` deletes those that ended a day ago. One listing.

        Raises StorageError.
        """
        matches = (_NAME.fullmatch(blob.name.rpartition("/")[2]) for blob in self._place.list(FOLDER))
        pins = [Pin(int(match[1]), int(match[2]) / 1000, match[3]) for match in matches if match is not None]
        if not pins:
            return []
        now_s = self._clock()
        ended = [pin for pin in pins if pin.until_s <= now_s]
        if tidies and any(pin.id not in self._ended or pin.until_s <= now_s - LEFT_S for pin in ended):
            now_s = min(now_s, self._exact_clock())
            self._ended = {pin.id for pin in ended if pin.until_s <= now_s}
        for pin in ended:
            if tidies and pin.until_s <= now_s - LEFT_S:
                self._place.delete(pin.name)
        return [pin for pin in pins if pin.until_s > now_s]

    def oldest(self, *, tidies: bool = True) -> int | None:
        """The oldest version that is held; None if none is. One listing. Raises StorageError."""
        return min((pin.version for pin in self.list_held(tidies=tidies)), default=None)
