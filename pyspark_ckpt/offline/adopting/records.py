"""Records in the state files of Spark's own providers: what a batch wrote to a store, or all of it.

Sizes are i32, big-endian. Source: ``HDFSBackedStateStoreProvider`` and ``StateStoreChangelog`` of Spark 3.5 to 4.3::

    .delta, .snapshot       size · key · size · value, or size · key · -1 for a deletion; -1 at the end
    .changelog, version 1   the same
    version 2               "v2" · records; a record is type:u8 · size · key · size · value; 0 at the end
    version 3               "v3" · lineage · records as in version 1
    version 4               "v4" · lineage · records as in version 2

Texts are Java's UTF: u16 and bytes. The lineage is JSON: which commits the store had since its last snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from pyspark_ckpt.offline.adopting.streams import ByteStream
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import DAMAGE, Count, SparkId

_SIZE = struct.Struct(">i")
_TEXT = struct.Struct(">H")
_END = -1
_END_OF_TYPED, _PUT, _DELETE, _MERGE = 0x00, 0x01, 0x10, 0x11
_VERSION_BYTES = 4
_TYPED = ("v2", "v4")
_WITH_LINEAGE = ("v3", "v4")


class Change(NamedTuple):
    """A write to a key: its new value, None if it was deleted, or a value that was added to those it has."""

    key: bytes
    value: bytes | None
    is_added: bool = False


class LineageItem(msgspec.Struct, frozen=True):
    """A commit of a store: its version and its unique id."""

    version: Count
    checkpointUniqueId: SparkId  # noqa: N815 - Spark's name


class Changelog(NamedTuple):
    """The records of a changelog, and the commits before it that it names; None if it names none."""

    changes: Iterator[Change]
    lineage: tuple[LineageItem, ...] | None


def read_changes(stream: ByteStream, where: str) -> Iterator[Change]:
    """Yield the records of a delta, of a snapshot, or of a changelog of version 1. Raises FormatError."""
    while (size := _size(stream)) != _END:
        key = stream.take(size)
        size = _size(stream)
        yield Change(key, None if size == _END else stream.take(size))
    _require_end(stream, where)


def read_changelog(stream: ByteStream, where: str) -> Changelog:
    """Return what a changelog has. Raises FormatError, also while records are read."""
    version = _version(stream)
    if version is None:
        return Changelog(read_changes(stream, where), None)
    stream.take(_VERSION_BYTES)
    lineage = _lineage(stream, where) if version in _WITH_LINEAGE else None
    read = _read_typed if version in _TYPED else read_changes
    return Changelog(read(stream, where), lineage)


def _version(stream: ByteStream) -> str | None:
    """Return the version of a changelog; None for version 1, which does not say so.

    A changelog of version 1 begins with the size of a key: "v2" to "v4" after their length would be one of 160,000.
    """
    begin = stream.peek(_VERSION_BYTES)
    version = begin[_TEXT.size :].decode("latin-1")
    is_given = begin[: _TEXT.size] == _TEXT.pack(2) and version in ("v2", "v3", "v4")
    return version if is_given else None


def _read_typed(stream: ByteStream, where: str) -> Iterator[Change]:
    while (kind := stream.take(1)[0]) != _END_OF_TYPED:
        key = stream.take(_size(stream))
        size = _size(stream)
        if kind == _DELETE and size == _END:
            yield Change(key, None)
        elif kind in (_PUT, _MERGE):
            yield Change(key, stream.take(size), kind == _MERGE)
        else:
            raise FormatError(f"{where} is damaged: it has a record of the type {kind:#04x} with {size} bytes.")
    _require_end(stream, where)


def _lineage(stream: ByteStream, where: str) -> tuple[LineageItem, ...]:
    (size,) = _TEXT.unpack(stream.take(_TEXT.size))
    try:
        return msgspec.json.decode(stream.take(size), type=tuple[LineageItem, ...])
    except DAMAGE as problem:
        raise FormatError(f"{where} is damaged: its lineage cannot be read: {problem}.") from problem


def _size(stream: ByteStream) -> int:
    return int(_SIZE.unpack(stream.take(_SIZE.size))[0])


def _require_end(stream: ByteStream, where: str) -> None:
    if stream.peek(1):
        raise FormatError(f"{where} is damaged: there is more after its end.")
