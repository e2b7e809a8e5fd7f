"""Re-read all objects that retained versions of a store need, from time to time, and repair storage damage.

The objects lie on a circle, each at a point that follows from its name, and a hand goes round it once in each interval.
The position of the hand, and its time by the place's clock, are recorded in the folder of the store::

    <store>/scrub.json    {"format": 1, "position": 0 to 2^60, "time_s": ..., "damaged": [...], "xxh3": "..."}

A new process continues from there. It first reads what the hand would have passed while no process ran. A query that
runs for a minute a day therefore reads each object once in an interval, like one that always runs. If two processes
record their positions, the last one counts. Both have read what they record, so nothing is skipped, and at most the
objects between the two points are read twice. Table files are compared with their manifests. Deltas and manifests are
compared with the checksums inside them.

A damaged or missing table file is rewritten under its name if a local copy is intact. The log names all other damaged
objects. The next snapshot is made at once, without any damaged object. The names of damaged objects are recorded, too:
the next process re-reads these before all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import CkptError, FormatError, NotFoundError
from pyspark_ckpt.state_store.format.delta import download_delta
from pyspark_ckpt.state_store.format.keys import EMPTY
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import ManifestFile, read_manifest
from pyspark_ckpt.state_store.format.names import SCRUB_NAME, TABLE_FOLDER
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.format.sealed_objects import MAX_OBJECT_BYTES, read_sealed
from pyspark_ckpt.state_store.json_objects import ObjectName, UnixSeconds, read_again, seal
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.retention.confirmation import RESTORE_IT, Confirmations
from pyspark_ckpt.state_store.transactions.metrics import ScrubCounts

PROGRESS_FORMAT = 1
PASSES = 1000
"""How often the hand moves in each interval."""
PASS_BYTES = 1 << 30
"""A pass ends with the object that reaches this size. The next clean-up continues."""
SAVED_BYTES = 64 << 20
"""Progress is recorded each time this much was read, because a process may end in the middle of a pass."""
MAX_DAMAGED = 2000
"""How many names of damaged objects are recorded for the next process. It finds the others in their turn."""
SKEW_S = 60.0
"""How far one process may be ahead of another with the time of the place."""
CIRCLE = 1 << 60

_Reads: TypeAlias = Mapping[str, tuple[int, Callable[[], str | None]]]
"""By object name: its size, and a function that reads it and returns its damage."""


class Scrubbed(NamedTuple):
    """The result of a pass: how many objects were repaired, and whether new damage was found in others."""

    healed: int
    found_damage: bool


class _Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything up to ``position``, which was due at ``time_s`` by the time of the place, was read."""

    format: int
    position: Annotated[int, msgspec.Meta(ge=0, lt=CIRCLE)]
    time_s: UnixSeconds
    damaged: tuple[ObjectName, ...]


class Scrub:
    """Scrubs one store."""

    def __init__(
        self,
        place: BlobPlace,
        confirmations: Confirmations,
        interval_s: float,
        scratch: Path,
        counts: ScrubCounts,
        log: StoreLog,
        clock: Callable[[], float],
    ) -> None:
        """Read all of ``place`` once in ``interval_s`` (0: never). ``scratch`` is a file name for large deltas.

        ``clock`` returns the time of the place.
        """
        self._place = place
        self._confirmations = confirmations
        self._interval_s = interval_s
        self._scratch = scratch
        self._counts = counts
        self._log = log
        self._notices = Notices(place)
        self._clock = clock
        self._next_s: float | None = None
        self._damaged: set[str] = set()
        self._known: set[str] = set()

    def run(self, local_tables: Callable[[], Iterable[Path]]) -> Scrubbed:
        """Read the objects that are due by now, and repair damage: see ``heal``.

        If a place cannot be reached, the next call tries again.
        """
        healed = 0
        try:
            self._read_due()
            healed = self.heal(local_tables)
        except CkptError as problem:
            self._log.warning("stored objects could not be re-read or repaired this time: %s", problem)
        damaged = self._find_damaged()
        self._counts.note_damaged(len(damaged))
        known, self._known = self._known, damaged
        return Scrubbed(healed, bool(damaged - known))

    def recall(self) -> bool:
        """Re-read objects that an earlier process found damaged; return whether a restore would still need any of them.

        Raises StorageError, FormatError.
        """
        if self._interval_s == 0:
            return False
        try:
            kept = self._read_progress()
        except (NotFoundError, FormatError):  # no damage is known, or everything will be re-read
            return False
        if kept.damaged:
            self._read_again(kept, self._reads())
        damaged = self._find_damaged()
        return bool(damaged) and not damaged.isdisjoint(self._find_needed())

    def _find_needed(self) -> set[str]:
        """Return the objects that a restore of the newest version reads if nothing is damaged."""
        lineage = Lineage.read(self._place)
        newest = max(lineage.snapshots, default=EMPTY)
        needed = {blob.name for marker, (_, blob) in lineage.deltas.items() if marker.version > newest.version}
        if newest != EMPTY:
            needed.add(lineage.snapshots[newest].name)
            with suppress(FormatError, NotFoundError):  # the manifest itself is needed and damaged
                needed |= read_manifest(self._place, newest)[1].objects().keys()
        return needed

    def _read_due(self) -> None:
        if self._interval_s == 0:
            return
        now_s, pass_s = self._clock(), self._interval_s / PASSES
        if self._next_s is not None and self._next_s - pass_s <= now_s < self._next_s:
            return
        kept = self._find_progress(now_s)
        if now_s - kept.time_s >= pass_s or not set(kept.damaged) <= self._find_damaged():
            kept = self._go_on(kept, now_s)
        self._next_s = kept.time_s + pass_s

    def _find_progress(self, now_s: float) -> _Progress:
        """Return the position of the hand. If it is unknown, all objects are due."""
        all_due = _Progress(PROGRESS_FORMAT, 0, now_s - self._interval_s, ())
        try:
            kept = self._read_progress()
        except NotFoundError:  # nothing was re-read here yet: the first round began when the oldest object was written
            stored = (*self._place.list(), *self._place.list(TABLE_FOLDER))
            oldest_s = min((blob.modified_s for blob in stored), default=now_s)
            return _Progress(PROGRESS_FORMAT, 0, min(oldest_s, now_s), ())
        except FormatError as problem:
            self._log.warning("all stored objects are re-read: %s", problem)
            return all_due
        return kept if kept.time_s - now_s < SKEW_S else all_due

    def _read_progress(self) -> _Progress:
        """Return the recorded progress. Raises NotFoundError (nothing is recorded yet), FormatError, StorageError."""
        # List first, so that a new store reads nothing.
        if not any(blob.name == SCRUB_NAME for blob in self._place.list(prefix=SCRUB_NAME)):
            raise NotFoundError(f"{self._place.url}/{SCRUB_NAME} does not exist.")
        return read_sealed(self._place, SCRUB_NAME, _Progress, MAX_OBJECT_BYTES, known=PROGRESS_FORMAT)

    def _keep(self, position: int, time_s: float) -> _Progress:
        """Record the position of the hand, and the damaged objects."""
        damaged = tuple(sorted(self._find_damaged())[:MAX_DAMAGED])
        progress = _Progress(PROGRESS_FORMAT, position % CIRCLE, time_s, damaged)
        self._place.put(SCRUB_NAME, seal(progress))
        return progress

    def _go_on(self, kept: _Progress, now_s: float) -> _Progress:
        """Read what the hand passes until now, or as much as one pass may; return its new position."""
        reads = self._reads()
        self._read_again(kept, reads)
        way = round(min(1.0, max(0.0, (now_s - kept.time_s) / self._interval_s)) * CIRCLE)
        left_bytes, unsaved_bytes = PASS_BYTES, 0
        for distance, name in sorted(((_place_on_circle(name) - kept.position) % CIRCLE, name) for name in reads):
            if distance >= way:
                break
            size_bytes, read = reads[name]
            self._note(name, read())
            left_bytes -= size_bytes
            unsaved_bytes += size_bytes
            if left_bytes <= 0 or unsaved_bytes >= SAVED_BYTES:
                gone, unsaved_bytes = distance + 1, 0
                progress = self._keep(kept.position + gone, now_s - (way - gone) / CIRCLE * self._interval_s)
                if left_bytes <= 0:
                    return progress
        return self._keep(kept.position + way, now_s)

    def _read_again(self, kept: _Progress, reads: _Reads) -> None:
        """Re-read the objects that other processes have found damaged; forget those no longer needed."""
        self._damaged &= reads.keys()
        for name in (set(kept.damaged) & reads.keys()) - self._find_damaged():
            self._note(name, reads[name][1]())

    def _find_damaged(self) -> set[str]:
        return self._damaged | self._confirmations.damaged.keys()

    def heal(self, local_tables: Callable[[], Iterable[Path]]) -> int:
        """Rewrite damaged table files that have a good copy among the ``local_tables``; return how many.

        Files in notices of deletion are left alone, and so are missing files of a young snapshot.
        Raises StorageError, FormatError.
        """
        damaged = dict(self._confirmations.damaged)
        if not damaged:
            return 0
        doomed, healed = self._notices.tables(), 0
        for name, file in damaged.items():
            may_heal = name not in doomed and name not in self._confirmations.untouchable
            content = _good_copy(file, local_tables()) if may_heal else None
            if content is not None:
                self._place.put(name, content)
                self._confirmations.forget(name)
                healed += 1
                self._log.warning("%s/%s was damaged: it was written again from a local copy", self._place.url, name)
        self._counts.count(healed=healed)
        return healed

    def _note(self, name: str, problem: str | None) -> None:
        self._counts.count(scrubbed=1)
        if problem is None:
            self._damaged.discard(name)
            return
        if name not in self._confirmations.damaged:
            self._damaged.add(name)
        self._log.warning("%s; %s", problem, RESTORE_IT)

    def _reads(self) -> _Reads:
        """Return how to read each object that retained versions need."""
        lineage = Lineage.read(self._place)
        tables = {blob.name: blob for blob in self._place.list(TABLE_FOLDER)}
        reads: dict[str, tuple[int, Callable[[], str | None]]] = {}
        for marker, manifest in lineage.snapshots.items():
            read = partial(read_manifest, self._place, marker)
            reads[manifest.name] = manifest.size_bytes, partial(self._try, read)
            try:
                files = read()[1].objects()
            except (FormatError, NotFoundError):  # reported when the manifest is read in its turn
                continue
            age_s = self._clock() - manifest.modified_s
            for name, file in files.items():
                reads[name] = file.size_bytes, partial(self._read_table, file, tables.get(name), age_s)
        for delta, blob in lineage.deltas.values():
            fetch = partial(download_delta, self._place, delta, blob.size_bytes, self._scratch)
            reads[blob.name] = blob.size_bytes, partial(self._try, fetch)
        return reads

    def _read_table(self, file: ManifestFile, blob: Blob | None, manifest_age_s: float) -> str | None:
        if blob is not None:
            return self._confirmations.confirm_again(file, blob)
        self._confirmations.note_missing({str(file.object_name): file}, manifest_age_s)
        return f"{self._place.url}/{file.object_name} is missing"

    def _try(self, read: Callable[[], object]) -> str | None:
        try:
            read_again(read)
        except NotFoundError:  # retired after the listing
            return None
        except FormatError as problem:
            return problem.message.rstrip(".")
        finally:
            self._scratch.unlink(missing_ok=True)
        return None


def _place_on_circle(name: str) -> int:
    """Return the position of an object on the circle."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % CIRCLE


def _good_copy(file: ManifestFile, paths: Iterable[Path]) -> bytes | None:
    """Return the bytes of a table file from the first local file that matches its manifest; None if no file does."""
    for path in paths:
        try:
            if path.stat().st_size == file.size_bytes:
                content = path.read_bytes()
                if hashlib.sha256(content).hexdigest() == file.sha256:
                    return content
        except OSError:  # this copy is unreadable or gone: another may be good
            continue
    return None
