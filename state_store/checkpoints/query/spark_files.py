"""The forms of files that Spark keeps for sources and for schemas of state, as far as they reveal damage.

::

    sources/<source>/<number>             v1, then one entry a line: JSON, for Spark's own sources; that of files has
                                          the number in each entry, as batchId
    sources/<source>/<number>.compact     the same, of all numbers up to this one (file source)
    state/<operator>/0/<store>/_metadata/schema     Java's UTF "v1" to "v3", then the schemas of keys and values

A source of another program may keep anything there. Only content that is invalid in every form is damage.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from pyspark_ckpt.state_store.checkpoints.query.entries import decode_json
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE

_SOURCE = re.compile(rb"[A-Za-z0-9_]{1,255}")
_SOURCE_LOG = re.compile(r"sources/([A-Za-z0-9_]{1,255})/([0-9]{1,18})(\.compact)?")
_SCHEMA = re.compile(r"state/[0-9]+/(?:[0-9]+/(?:[^/]+/)?_metadata/schema|_stateSchema/.*)")
_VERSION = re.compile(rb"v[0-9]{1,9}")
_SCHEMA_ID_BYTES = 2
MAX_REPEATED = 8
"""How many lines of an entry are checked as sources that may be there twice."""
_OF_KAFKA = b"\0"
"""A byte that Kafka's source writes before the version."""
_JSON = msgspec.json.Decoder(msgspec.Raw)
_CUT = msgspec.DecodeError, UnicodeDecodeError, RecursionError


def check_form(name: str, content: bytes, where: str, file_sources: Container[str] = ()) -> None:
    """Raise FormatError if a file of a source, or a schema of state, is certainly damaged. Other files pass.

    ``file_sources``: the folders of sources known to be Spark's file source, in its form.
    """
    if (log := _SOURCE_LOG.fullmatch(name)) is not None:
        _check_source_log(content, where, is_of_files=log[1] in file_sources)
        if log[1] in file_sources:
            _check_batches(content, where, int(log[2]), is_compact=log[3] is not None)
    elif _SCHEMA.fullmatch(name):
        _check_schema(content, where)


def choose_source_files(names: Iterable[str]) -> list[str]:
    """Return the files of sources that a start may read: all but those that a newer ``.compact`` replaces."""
    found = {name: _SOURCE_LOG.fullmatch(name) for name in names}
    logs = [(match[1], int(match[2]), match[3]) for match in found.values() if match is not None]
    first = dict(sorted((source, number) for source, number, compact in logs if compact))
    return sorted(
        name
        for name, match in found.items()
        if match is None or int(match[2]) > first.get(match[1], -1) or (match[3] and int(match[2]) == first[match[1]])
    )


def read_file_offset(offset: str | bytes) -> int | None:
    """Return the newest log of a file source, from its offset; None for an offset of another source.

    A file source logs the files of each of its own batches, and its offset is the number of the newest of them.
    """
    with suppress(*_CUT):
        return msgspec.json.decode(offset, type=_FileOffset).logOffset
    return None


def read_file_offsets(offsets: bytes) -> dict[str, int]:
    """Return the file sources in an entry of the offset log: the newest log that each has written, by folder."""
    version, *lines = offsets.split(b"\n")
    found = {}
    for number, line in enumerate(lines[1:]):
        source, _, offset = line.partition(b":") if version == b"v2" else (str(number).encode(), b"", line)
        if (newest := read_file_offset(offset)) is not None and _SOURCE.fullmatch(source):
            found[source.decode()] = newest
    return found


def guess_file_offsets(offsets: bytes) -> Iterator[dict[str, int]]:
    """Yield the result of ``read_file_offsets``, then other possible assignments of folders.

    In v1, a frame that the query uses twice has two equal lines and one folder, so that the folders after it have lower
    numbers than their lines. Nothing tells which of several equal lines are one frame: each choice is yielded.
    """
    yield read_file_offsets(offsets)
    version, *entry = offsets.split(b"\n")
    lines = entry[1:]
    repeated = [number for number, line in enumerate(lines) if line in lines[:number]][:MAX_REPEATED]
    for count in range(1, len(repeated) + 1) if version == b"v1" else ():
        for again in combinations(repeated, count):
            once = [line for number, line in enumerate(lines) if number not in again]
            yield read_file_offsets(b"\n".join([version, *entry[:1], *once]))


def find_lost_source_files(file_offsets: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """Return the first log of each file source that a start needs and ``names`` lack."""
    chosen = [match for name in choose_source_files(names) if (match := _SOURCE_LOG.fullmatch(name))]
    there = {(match[1], int(match[2])) for match in chosen}
    first = {match[1]: int(match[2]) for match in chosen if match[3]}
    needed = ((source, range(first.get(source, 0), newest + 1)) for source, newest in file_offsets.items())
    lost = ((source, next((each for each in logs if (source, each) not in there), None)) for source, logs in needed)
    return [f"sources/{source}/{log}" for source, log in lost if log is not None]


class _FileOffset(msgspec.Struct, forbid_unknown_fields=True):
    logOffset: int  # noqa: N815 - Spark's name


class _ReadFile(msgspec.Struct):
    batchId: int  # noqa: N815 - Spark's name


def _check_source_log(content: bytes, where: str, *, is_of_files: bool) -> None:
    if not content.strip(b"\0\r\n "):
        raise FormatError(f"{where} is damaged: it is empty.")
    version, *entries = content.removeprefix(_OF_KAFKA).split(b"\n")
    if is_of_files and not _VERSION.fullmatch(version):
        raise FormatError(f"{where} is damaged: it does not begin with a version.")
    if _VERSION.fullmatch(version):
        if not any(entries):
            raise FormatError(f"{where} is damaged: it has no entry after its version.")
        for number, entry in enumerate(entries, 2):
            if entry.startswith((b"{", b"[")) or (entry and is_of_files):
                _check_json(entry, f"line {number} of {where}")


def _check_batches(content: bytes, where: str, number: int, *, is_compact: bool) -> None:
    """Raise FormatError if a log of the file source, whose entries name its number, is really another one."""
    for line, entry in enumerate(content.split(b"\n")[1:], 2):
        with suppress(*_CUT):
            found = msgspec.json.decode(entry, type=_ReadFile).batchId
            if found > number or (found != number and not is_compact and found >= 0):
                expected = f"{number} or less" if is_compact else number
                raise FormatError(
                    f"{where} is damaged: line {line} has batchId {found}, not {expected}. Files were exchanged, or "
                    "one was copied over another."
                )


class StateSchema(NamedTuple):
    """The schemas of a state, as Spark's JSON, and its key encoder; None if the file does not name it.

    ``value_id``: Spark's id of the schema of values, which rises when the schema changes.
    """

    name: str
    keys: Any
    values: Any
    encoder: Any = None
    value_id: int = 0


def read_schemas(content: bytes, where: str) -> list[StateSchema]:
    """Return the schemas of the states of a store. Raises FormatError."""
    version, rest = _read_text(content, where)
    if version in (b"v1", b"v2"):
        read = _read_text if version == b"v1" else _read_chunks
        keys, rest = read(rest, where)
        values, rest = read(rest, where)
        return [StateSchema(DEFAULT_STORE, decode_json(keys, where), decode_json(values, where))]
    if version != b"v3":
        raise FormatError(f"{where} begins with {version!r}, which is not a known version of a schema.")
    found = []
    count, rest = int.from_bytes(rest[:4], "big"), rest[4:]
    for _ in range(count):
        name, rest = _read_text(rest, where)
        keys, rest = _read_chunks(rest[_SCHEMA_ID_BYTES:], where)
        value_id = int.from_bytes(rest[:_SCHEMA_ID_BYTES], "big")
        values, rest = _read_chunks(rest[_SCHEMA_ID_BYTES:], where)
        encoder, rest = _read_chunks(rest, where)
        _, rest = _read_chunks(rest, where)  # the schema of keys in a map
        key_schema, value_schema, encoding = (decode_json(each, where) for each in (keys, values, encoder))
        found.append(StateSchema(name.decode(), key_schema, value_schema, encoding, value_id))
    return found


def _read_chunks(content: bytes, where: str) -> tuple[bytes, bytes]:
    """Return a text in several pieces, and the rest."""
    text, rest = b"", content[4:]
    for _ in range(int.from_bytes(content[:4], "big")):
        chunk, rest = _read_text(rest, where)
        text += chunk
    return text, rest


def _check_schema(content: bytes, where: str) -> None:
    version, rest = _read_text(content, where)
    if not _VERSION.fullmatch(version):
        raise FormatError(f"{where} is damaged: it does not begin with the version of a schema.")
    if version == b"v2":
        for what in ("keys", "values"):
            schema, rest = _read_chunks(rest, where)
            _check_json(schema, f"the schema of {what} in {where}")


def _read_text(content: bytes, where: str) -> tuple[bytes, bytes]:
    """Return a text as Java's DataOutput writes it, and the rest."""
    end = 2 + int.from_bytes(content[:2], "big")
    if len(content) < max(end, 2):
        raise FormatError(f"{where} is damaged: it is cut off.")
    return content[2:end], content[end:]


def _check_json(text: bytes, where: str) -> None:
    try:
        _JSON.decode(text)
    except _CUT as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem
