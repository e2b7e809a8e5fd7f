"""Table files that the shim and the workers stage, and the checks before a commit is acknowledged.

When a file is complete, its writer makes its *seal*: the size and a checksum. The seal travels with the file's name, in
the commit call or in the part. The state server compares the seal with the very bytes that it uploads. It also compares
every block with RocksDB's checksum, which was computed in the writer's memory, and the marker row with the commit. This
ensures that the acknowledged bytes equal the written ones. They are compared once more before the local database
ingests the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from pyspark_ckpt.state_store.chunks import hash_file
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker
from pyspark_ckpt.state_store.json_objects import Count
from pyspark_ckpt.state_store.plain_files import open_plain
from pyspark_ckpt.state_store.sst.table_check import CheckedTable

_RETRY = (
    "Nothing was committed, and the task is tried again. If this error persists, check the disk of the executor's "
    "local folder (spark.sql.streaming.stateStore.ckpt.localDir)."
)


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"size_bytes": "bytes"}):
    """The size of a file and the xxh64 of its content in 16 hex digits, as its writer computed them."""

    size_bytes: Count
    xxh64: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]


Seals = Mapping[str, Seal]
"""Seals of staged files, by name."""


def seal_file(path: Path) -> Seal:
    """Compute the seal of a complete file. Raises StorageError."""
    digest = xxhash.xxh64()
    try:
        with open_plain(path) as source:
            size_bytes = hash_file(source, digest.update)
    except OSError as problem:
        raise StorageError(f"Could not read the staged file {path}: {problem}.") from problem
    return Seal(size_bytes, digest.hexdigest())


class StagedTable:
    """One table file in a staging folder."""

    def __init__(self, path: Path, seal: Seal | None, who: str) -> None:
        """Check the file ``path``. Errors name ``who``. Without a ``seal``, its size and checksum are not checked."""
        self.path = path
        self._seal = seal
        self._who = who
        self._uploaded: Seal | None = None

    def chunks(self, commit: Marker, *, is_first: bool) -> Iterator[bytes]:
        """Yield all bytes of the file for the upload. The upload may become visible only if this ends without an error.

        The first file of a commit must begin with the commit's marker row, and no file may have another commit's.
        Raises StorageError, which names the file, if the file is damaged or cannot be read.
        """
        digest = xxhash.xxh64()
        with refusing_damage(self._who), closing(CheckedTable(self.path)) as table:
            for chunk in table.chunks():
                digest.update(chunk)
                yield chunk
            self._check_marker(table, commit, is_first=is_first)
            found = Seal(table.size_bytes, digest.hexdigest())
            if self._seal not in {None, found}:
                raise self._make_damage_error(f"it has {_show(found)}, but its writer wrote {_show(self._seal)}")
        self._uploaded = found

    def require_unchanged(self) -> None:
        """Raise StorageError if the file differs from its upload, or cannot be read."""
        with refusing_damage(self._who):
            if (found := seal_file(self.path)) != self._uploaded:
                raise self._make_damage_error(
                    f"it has {_show(found)}, but the uploaded file has {_show(self._uploaded)}"
                )

    def _check_marker(self, table: CheckedTable, commit: Marker, *, is_first: bool) -> None:
        key, value = table.first_row()
        if key != MARKER_KEY:
            if is_first:
                raise self._make_damage_error(f"it does not begin with the marker row of {commit}")
        elif value != commit.encode():
            raise self._make_damage_error(f"it has the marker row of {_marker_shown(value)}")

    def _make_damage_error(self, why: str) -> FormatError:
        return FormatError(f"{self.path} is damaged: {why}.")


@contextmanager
def refusing_damage(who: str) -> Iterator[None]:
    """Turn damage in files staged by ``who`` into a StorageError: the next attempt of the task may succeed."""
    try:
        yield
    except FormatError as problem:
        raise StorageError(f"{who}: {problem.message}", hint=_RETRY) from problem
    except OSError as problem:
        raise StorageError(f"{who}: a staged file cannot be read: {problem}.", hint=_RETRY) from problem


def _show(seal: Seal | None) -> str:
    return "nothing" if seal is None else f"{seal.size_bytes} bytes with the checksum {seal.xxh64}"


def _marker_shown(value: bytes) -> str:
    try:
        return str(Marker.decode(value))
    except FormatError:
        return repr(value[:64])
