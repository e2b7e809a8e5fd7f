"""Read all that retained versions of a store need, once in a while, and put right what has rotted where it is stored.

Every object has a moment of its own in each interval, which follows from its name and the time of the place: so what
is read is spread over the interval, no process needs to remember what was read, and one that takes over goes on. Table
files are compared with their manifests, deltas and manifests with the checksums that are in them.

A table file that is damaged or missing, and that a local copy has as it was written, is written again under its name.
What else is damaged is named in the log, and the next snapshot, which is made at once, needs none of it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.confirmation import RESTORE_IT, Confirmations
from pyspark_ckpt.state_store.delta import download_delta
from pyspark_ckpt.state_store.errors import CkptError, FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import read_again
from pyspark_ckpt.state_store.lineage import Lineage
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.manifest import ManifestFile, read_manifest
from pyspark_ckpt.state_store.names import TABLE_FOLDER
from pyspark_ckpt.state_store.notices import Notices

PASSES = 1000
"""In each interval: so often is looked whose moment has come."""
PASS_BYTES = 256 << 20
"""So much is read in one pass, but for one object that has more; the next pass goes on."""

_Reads: TypeAlias = Mapping[str, tuple[int, Callable[[], str | None]]]
"""By the names of objects: their bytes, and what reads one and says what is wrong with it."""


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


class Scrubbed(NamedTuple):
    """What a pass came to: objects that were put right, and whether others are damaged that were not before."""

    healed: int
    found_damage: bool


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
        """Read all of ``place`` once in ``interval_s`` (0: never); ``scratch`` is a file name for large deltas.

        ``clock`` tells the time of the place.
        """
        self._place = place
        self._confirmations = confirmations
        self._interval_s = interval_s
        self._scratch = scratch
        self._counts = counts
        self._log = log
        self._notices = Notices(place)
        self._clock = clock
        self._last_s: float | None = None
        self._todo: list[str] = []
        self._damaged: set[str] = set()
        self._known: set[str] = set()

    def run(self, local_tables: Callable[[], Iterable[Path]]) -> Scrubbed:
        """Read the objects whose moment has come since the last call, and heal what is damaged; see ``heal``.

        A place that cannot be reached is asked again the next time.
        """
        healed = 0
        try:
            self._read_due()
            healed = self.heal(local_tables)
        except CkptError as problem:
            self._log.warning("stored objects could not be read again or put right this time: %s", problem)
        damaged = self._damaged | self._confirmations.damaged.keys()
        self._counts.note_damaged(len(damaged))
        known, self._known = self._known, damaged
        return Scrubbed(healed, bool(damaged - known))

    def _read_due(self) -> None:
        if self._interval_s == 0:
            return
        now_s = self._clock()
        last_s = now_s if self._last_s is None else self._last_s
        if self._last_s is not None and not self._todo and now_s - last_s < self._interval_s / PASSES:
            return
        reads = self._reads()
        self._last_s = now_s
        self._todo += [name for name in reads if self._is_due(name, last_s, now_s) and name not in self._todo]
        left_bytes = PASS_BYTES
        while self._todo and left_bytes > 0:
            name = self._todo.pop(0)
            if name in reads:
                size_bytes, read = reads[name]
                left_bytes -= size_bytes
                self._note(name, read())
        self._damaged &= reads.keys()

    def heal(self, local_tables: Callable[[], Iterable[Path]]) -> int:
        """Write damaged table files again of which one of the ``local_tables`` is a good copy; how many those were.

        What somebody may be about to delete is left alone, and what is missing of a young snapshot.
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
        """All that retained versions need."""
        lineage = Lineage.read(self._place)
        tables = {blob.name: blob for blob in self._place.list(TABLE_FOLDER)}
        reads: dict[str, tuple[int, Callable[[], str | None]]] = {}
        for marker, manifest in lineage.snapshots.items():
            read = partial(read_manifest, self._place, marker)
            reads[manifest.name] = manifest.size_bytes, partial(self._try, read)
            try:
                files = read()[1].objects()
            except (FormatError, NotFoundError):  # that is found when it is read in its turn
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
        except NotFoundError:  # retired since the listing
            return None
        except FormatError as problem:
            return problem.message.rstrip(".")
        finally:
            self._scratch.unlink(missing_ok=True)
        return None

    def _is_due(self, name: str, last_s: float, now_s: float) -> bool:
        """Whether the moment of an object lies between two times of the place."""
        moment_s = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / (1 << 64) * self._interval_s
        return (now_s - moment_s) // self._interval_s > (last_s - moment_s) // self._interval_s


def _good_copy(file: ManifestFile, paths: Iterable[Path]) -> bytes | None:
    """The bytes of a table file as a manifest has it, from one of the local files; None if none is that."""
    for path in paths:
        try:
            if path.stat().st_size == file.size_bytes:
                content = path.read_bytes()
                if hashlib.sha256(content).hexdigest() == file.sha256:
                    return content
        except OSError:  # a local copy that is damaged, or gone meanwhile: another may have it
            continue
    return None
