"""Read the stored table files of a snapshot before anything that the snapshot replaces is deleted.

The name and age of an object say nothing about its bytes. Every table file is therefore read, and its size and checksum
are compared with the manifest. A process reads each file once, because objects never change. If one does change, its
age or size differs, and it is read again. ``scrub`` also re-reads all of them from time to time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import is_intact
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.manifest import ManifestFile
from pyspark_ckpt.state_store.json_objects import read_again
from pyspark_ckpt.state_store.log import StoreLog

MISSING_S = 86400.0
"""A missing table file is rewritten only if its snapshot is at least this old, by the time of the place."""

RESTORE_IT = (
    "the next scrub repairs it if the local copy is good; otherwise restore the object from a backup of the checkpoint"
)
"""What to do about a damaged object."""


class Confirmations:
    """Which table files of one store this process has read and found to match their manifests."""

    def __init__(self, place: BlobPlace, log: StoreLog) -> None:
        """Read from ``place``."""
        self._place = place
        self._log = log
        self._intact: dict[Blob, str] = {}
        self._left_bytes = math.inf
        self.is_exhausted = False
        self.damaged: dict[str, ManifestFile] = {}
        """Table files found damaged or missing and not repaired since, by object name."""
        self.untouchable: set[str] = set()
        """The ones among them that may not be rewritten yet: see ``note_missing``."""

    def allow(self, size_bytes: float) -> None:
        """Allow ``size_bytes`` to be read until the next call. The last object read may exceed the limit."""
        self._left_bytes = size_bytes
        self.is_exhausted = False

    def confirm_all(self, files: Mapping[str, ManifestFile], listed: Mapping[str, Blob], manifest: str) -> bool:
        """Return whether all table files of a snapshot, all of them ``listed``, are intact. Raises StorageError.

        Also return False, and set ``is_exhausted``, if the allowed bytes do not suffice to read all of them.
        """
        wrong = []
        for name, file in files.items():
            if self._left_bytes <= 0 and not self.is_known(file, listed[name]):
                self.is_exhausted = True
                return False
            problem = self.confirm(file, listed[name])
            wrong += [] if problem is None else [problem]
        if wrong:
            self._log.warn_of_standing(
                "everything below snapshot %s is kept: %s; %s", manifest, "; ".join(wrong), RESTORE_IT
            )
        return not wrong

    def is_known(self, file: ManifestFile, blob: Blob) -> bool:
        """Return whether a table file was found intact before."""
        return self._intact.get(blob) == file.xxh3

    def confirm(self, file: ManifestFile, blob: Blob) -> str | None:
        """Return the damage of a table file, or None; read it unless it is known. Raises StorageError."""
        if self.is_known(file, blob):
            return None
        problem = self.check(file, blob)
        if problem is None:
            self._intact[blob] = file.xxh3
            self.forget(blob.name)
        else:
            self.damaged[blob.name] = file
        return problem

    def note_missing(self, files: Mapping[str, ManifestFile], manifest_age_s: float) -> None:
        """Remember that table files of a snapshot are missing.

        A process that makes a snapshot takes it back if a table file is missing. Until it is certain that no process is
        about to do so, the file must not reappear: another process could then rely on a snapshot that is taken back.
        """
        self.damaged.update(files)
        if manifest_age_s < MISSING_S:
            self.untouchable.update(files)
        else:
            self.untouchable.difference_update(files)

    def forget(self, name: str) -> None:
        """Forget a damaged object that was repaired or is no longer needed."""
        self.damaged.pop(name, None)
        self.untouchable.discard(name)

    def confirm_again(self, file: ManifestFile, blob: Blob) -> str | None:
        """Re-read a table file that may have been damaged meanwhile; return as ``confirm``. Raises StorageError."""
        self._intact.pop(blob, None)
        return self.confirm(file, blob)

    def check(self, file: ManifestFile, blob: Blob) -> str | None:
        """Read a table file and return its damage, or None. Raises StorageError."""
        where = f"{self._place.url}/{blob.name}"
        if blob.size_bytes != file.size_bytes:
            return f"{where} is damaged: it has {blob.size_bytes} bytes, not {file.size_bytes}"
        self._left_bytes -= file.size_bytes

        def read() -> None:
            if not is_intact(self._place, file.as_stored_file):
                raise FormatError(f"{where} is damaged: its checksum is wrong")

        try:
            read_again(read)  # the bytes may have been damaged in transit
        except NotFoundError:
            return f"{where} is missing"
        except FormatError as problem:
            return problem.message.rstrip(".")
        return None

    def keep_only(self, listed: Mapping[str, Blob], needed: Collection[str]) -> None:
        """Forget objects that are gone, and damaged ones that no snapshot needs."""
        for name in [name for name in self.damaged if name not in needed]:
            self.forget(name)
        there = set(listed.values())
        self._intact = {blob: xxh3 for blob, xxh3 in self._intact.items() if blob in there}
