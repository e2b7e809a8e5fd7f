"""Pins: versions that are needed for longer than Spark keeps them, for all stores of a checkpoint.

::

    <checkpoint>/_ckpt/pins/<version:020d>-<until, Unix time in ms:015d>-<id>.pin

From the next clean-up on, retention keeps every pinned version and everything that it needs. A pin is therefore safe
for a version that Spark retains when the pin is made. A pin ends by itself, so that a dead owner does not hold
everything for ever. A living owner renews it.

One host may make a pin and another may read it, so its end is written and read by the time of the place. If a pin has
ended by an estimate of that time, the place is asked once: its clock may have been set back. A pin that has ended holds
nothing. Any process that finds it a day later deletes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes, ask_time
from pyspark_ckpt.state_store.format.names import new_id

FOLDER = "_ckpt/pins"
PIN_S = 600.0
"""How long a version is pinned while it is copied. The pin is renewed before it ends."""
LEFT_S = 86400.0
"""How long an ended pin stays: its owner is another process, which may still run."""

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
        times: PlaceTimes | None = None,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        """Keep pins in ``checkpoint``. Each new one is named by an id from ``make_id``.

        ``times``: the known times of places.
        """
        self._place = checkpoint
        self._clock = (times or PlaceTimes()).make_clock(checkpoint)
        self._make_id = make_id
        self._ended: set[str] = set()
        """Ids of pins that have ended by the place's own clock."""

    def add(self, version: int, for_s: float) -> Pin:
        """Keep ``version`` for ``for_s`` seconds from now; durable on return. Raises StorageError."""
        pin = Pin(version, ask_time(self._place) + for_s, self._make_id())
        self._place.put(pin.name, b"")
        return pin

    def has_ended(self, pin: Pin) -> bool:
        """Return whether ``pin`` no longer holds its version. Raises StorageError."""
        return pin.until_s <= ask_time(self._place)

    def renew(self, pin: Pin, for_s: float) -> Pin:
        """Keep the version of ``pin`` for ``for_s`` seconds from now, without a gap; return the pin that replaces it.

        Raises StorageError.
        """
        renewed = self.add(pin.version, for_s)
        self.remove(pin)
        return renewed

    def remove(self, pin: Pin) -> None:
        """Release the version. It is no error if the pin has ended. Raises StorageError."""
        self._place.delete(pin.name)

    def list_held(self, *, tidies: bool = True) -> list[Pin]:
        """Return all pins that have not ended, by version. One listing.

        With ``tidies``, delete those that ended a day ago. Raises StorageError.
        """
        matches = (_NAME.fullmatch(blob.name.rpartition("/")[2]) for blob in self._place.list(FOLDER))
        pins = [Pin(int(match[1]), int(match[2]) / 1000, match[3]) for match in matches if match is not None]
        if not pins:
            return []
        now_s = self._clock()
        ended = [pin for pin in pins if pin.until_s <= now_s]
        if tidies and any(pin.id not in self._ended or pin.until_s <= now_s - LEFT_S for pin in ended):
            now_s = min(now_s, ask_time(self._place))
            self._ended = {pin.id for pin in ended if pin.until_s <= now_s}
        for pin in ended:
            if tidies and pin.until_s <= now_s - LEFT_S:
                self._place.delete(pin.name)
        return [pin for pin in pins if pin.until_s > now_s]

    def oldest(self, *, tidies: bool = True) -> int | None:
        """Return the oldest pinned version, or None. One listing. Raises StorageError."""
        return min((pin.version for pin in self.list_held(tidies=tidies)), default=None)
