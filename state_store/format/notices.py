"""Notices of deletion: a process that is about to delete table files first says so in the folder of the store.

::

    <store>/notices/<32 hex digits>.notice    {"format": 1, "tables": ["sst/...", ...], "xxh3": "..."}

See ``retention`` for the rule that needs them. Every clean-up posts its own notices. Their names are never reused, and
a notice is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.names import new_id
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import TableObject, seal

FOLDER = "notices"
NOTICE_FORMAT = 1
MAX_BYTES = 64 << 20

_NAME = re.compile(rf"{FOLDER}/[0-9a-f]{{32}}\.notice")


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a notice: the table files that its writer may delete."""

    format: int
    tables: tuple[TableObject, ...]


class Notices:
    """The notices of one store."""

    def __init__(self, place: BlobPlace, make_id: Callable[[], str] = new_id) -> None:
        """Keep the notices in ``place``. Each posted one is named by an id from ``make_id``."""
        self._place = place
        self._make_id = make_id
        self._known: dict[Blob, frozenset[str]] = {}

    def post(self, tables: Iterable[str]) -> str:
        """Announce that ``tables`` may be deleted from now on. Returns the name of the notice. Raises StorageError.

        On return, every reader of the notices sees it. After an error, it may or may not exist.
        """
        name = f"{FOLDER}/{self._make_id()}.notice"
        self._place.put(name, seal(Notice(NOTICE_FORMAT, tuple(tables))))
        return name

    def withdraw(self, name: str) -> None:
        """Delete a notice: its writer will delete nothing more because of it. Raises StorageError."""
        self._place.delete(name)

    def read(self) -> dict[Blob, frozenset[str]]:
        """Return the tables of each posted notice. A notice is read only once. Raises FormatError, StorageError."""
        found = {}
        for blob in self._place.list(FOLDER):
            if _NAME.fullmatch(blob.name) is not None:
                try:
                    found[blob] = self._read_tables(blob)
                except NotFoundError:  # withdrawn since the listing
                    continue
        self._known = found
        return found

    def tables(self) -> set[str]:
        """Return every table file that a process may be about to delete. Raises FormatError, StorageError."""
        return set().union(*self.read().values())

    def _read_tables(self, blob: Blob) -> frozenset[str]:
        if blob not in self._known:
            return frozenset(read_sealed(self._place, blob.name, Notice, MAX_BYTES, known=NOTICE_FORMAT).tables)
        return self._known[blob]
