"""Read the table files of a snapshot, as they are stored, before anything that it replaces is deleted.

What a place has under a name, and of what age, says nothing of its bytes. So every table file is read, and compared in
size and checksum with what the manifest says; once in the life of a process, for its object is never changed: that it
was changed all the same, its age or its size would tell, and ``scrub`` reads all of them again from time to time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.blobs.copying import is_intact
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.manifest import ManifestFile
from pyspark_ckpt.state_store.json_objects import read_again
from pyspark_ckpt.state_store.log import StoreLog

MISSING_S = 86400.0
"""A table file that is missing is written again only for a snapshot that is so old, by the time of the place."""

RESTORE_IT = (
    "while the local copy is good the next scrub puts it right; else restore the object from a backup of the checkpoint"
)
"""What to do about an object that is damaged."""


class Confirmations:
    """Which table files of one store were read in this process, and are what their manifests say."""

    def __init__(self, place: BlobPlace, log: StoreLog) -> None:
        """Read in ``place``."""
        self._place = place
        self._log = log
        self._intact: dict[Blob, str] = {}
        self._left_bytes = math.inf
        self.is_exhausted = False
        self.damaged: dict[str, ManifestFile] = {}
        """Table files that were found damaged or missing, by the names of their objects, and not put right since."""
        self.untouchable: set[str] = set()
        """Those of them that may not be written again yet, see ``note_missing``."""

    def allow(self, size_bytes: float) -> None:
        """Read so many bytes at most until the next call, but for one object that has more."""
        self._left_bytes = size_bytes
        self.is_exhausted = False

    def confirm_all(self, files: Mapping[str, ManifestFile], listed: Mapping[str, Blob], manifest: str) -> bool:
        """Whether all table files of a snapshot are as they were written; all are listed. Raises StorageError.

        False also if what may be read at once was not enough for all of them: then ``is_exhausted``.
        """
        wrong = []
        for name, file in files.items():
            if self._left_bytes <= 0 and not self.is_known(file, listed[name]):
                self.is_exhausted = True
                return False
            problem = self.confirm(file, listed[name])
            wrong += [] if problem is None else [problem]
        if wrong:
            self._log.warning("what is below snapshot %s is kept: %s; %s", manifest, "; ".join(wrong), RESTORE_IT)
        return not wrong

    def is_known(self, file: ManifestFile, blob: Blob) -> bool:
        """Whether a table file was found intact before."""
        return self._intact.get(blob) == file.xxh3

    def confirm(self, file: ManifestFile, blob: Blob) -> str | None:
        """What is wrong with a table file, None if nothing is; it is read unless it is known. Raises StorageError."""
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

        Whoever makes a snapshot takes it back when a table file is missing: until it is certain that nobody is about to
        do that, the file must not appear again, for then somebody could rely on a snapshot that goes.
        """
        self.damaged.update(files)
        if manifest_age_s < MISSING_S:
            self.untouchable.update(files)
        else:
            self.untouchable.difference_update(files)

    def forget(self, name: str) -> None:
        """An object is damaged no longer, or nobody needs it."""
        self.damaged.pop(name, None)
        self.untouchable.discard(name)

    def confirm_again(self, file: ManifestFile, blob: Blob) -> str | None:
        """As ``confirm``, of one that may have been damaged since it was read. Raises StorageError."""
        self._intact.pop(blob, None)
        return self.confirm(file, blob)

    def check(self, file: ManifestFile, blob: Blob) -> str | None:
        """What is wrong with a table file as it is now; it is read. Raises StorageError."""
        where = f"{self._place.url}/{blob.name}"
        if blob.size_bytes != file.size_bytes:
            return f"{where} is damaged: it has {blob.size_bytes} bytes, not {file.size_bytes}"
        self._left_bytes -= file.size_bytes

        def read() -> None:
            if not is_intact(self._place, file.as_stored_file):
                raise FormatError(f"{where} is damaged: its checksum is wrong")

        try:
            read_again(read)  # the damage may have happened on the way
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
