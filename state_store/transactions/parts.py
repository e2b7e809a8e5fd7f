"""Staged rows of Python workers: table files of each session, and the *part* that describes them.

A session of a worker writes its table files into the staging folder of its task's transaction. Then, in one atomic
step, it writes a part: which states it knows under which numbers, which files it wrote, how row counts change. A
transaction may have several sessions, even in several processes. The commit joins all existing parts. A session that
died left no part, but then its task has failed, too.

::

    <staging>/<session>.part.json    {"format": 4, "states": [...], "files": ["<session>-0.sst"], "rows": {"16384": 7},
                                      "seals": {"<session>-0.sst": {"bytes", "xxh64"}}, "commit": "<id>", ..., "xxh3"}

The first file of each session begins with the marker row of the commit.

A part has its own checksum. Every file that is named like a session's must be listed in a part. A lost part is
therefore noticed, and not taken for a session that has staged nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pyspark_ckpt.state_store.database import Tuning, write_table_file
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta, have_same_keys
from pyspark_ckpt.state_store.json_objects import (
    Change,
    CommitId,
    Count,
    FileName,
    Name,
    StateNumber,
    Xxh3,
    check_format,
    decode_as,
    seal,
    unseal,
)
from pyspark_ckpt.state_store.local.files import publish
from pyspark_ckpt.state_store.plain_files import read_plain
from pyspark_ckpt.state_store.transactions.staged_log import LOG, read_frames
from pyspark_ckpt.state_store.transactions.staged_tables import Seal, Seals, seal_file

PART_FORMAT = 4
SUFFIX = ".part.json"
SESSIONS = ("worker-", "groups-")
"""Prefixes of the names of sessions and of all files that they stage."""

_STAGED = (".sst", LOG)
_LOG_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,122}\.log")


class PartState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state as a session uses it."""

    name: Name
    number: StateNumber
    descriptor: Descriptor


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The staged content of one session of a worker.

    ``rows`` are changes of row counts by state number, ``digests`` the digests of broadcast states. ``written`` is the
    number of rows in the files. ``seals`` of the files are by name. ``counts`` are metrics of the commit, by their
    names in its report. If a session has a ``log``, the log holds all of these instead. ``commit`` is the id of the
    commit that the transaction makes: a part of another commit is rejected.
    """

    states: tuple[PartState, ...]
    files: tuple[FileName, ...]
    rows: dict[StateNumber, Change]
    written: Count
    counts: dict[Name, Change]
    commit: CommitId
    log: str = ""
    format: int = PART_FORMAT
    seals: dict[FileName, Seal] = {}
    digests: dict[StateNumber, Xxh3] = {}


def write_part(staging: Path, session: str, part: Part) -> None:
    """Publish the part of a session: from now on the commit applies it."""
    publish(staging / f"{session}{SUFFIX}", seal(part))


def read_parts(staging: Path, commit_id: CommitId) -> list[Part]:
    """Return all parts in the staging folder of a commit, in a fixed order.

    Raises FormatError (a part is damaged or belongs to another commit), OSError.
    """
    parts = []
    for path in sorted(staging.glob(f"*{SUFFIX}")):
        part = decode_as(unseal(read_plain(path), str(path)), Part, str(path))
        check_format(part.format, PART_FORMAT, str(path))
        if part.commit != commit_id:
            raise FormatError(f"{path} is damaged: it is of the commit {part.commit}, not of {commit_id}.")
        if part.log and _LOG_NAME.fullmatch(part.log) is None:
            raise FormatError(f"{path} is damaged: {part.log!r} is not the name of a log.")
        parts.append(part)
    return parts


def close_parts(staging: Path, commit: Marker, tuning: Tuning) -> list[Part]:
    """Return all parts of a commit, with the rows of their logs in table files.

    Raises FormatError (staged content is damaged, or no part lists a file that a session has staged), StorageError,
    OSError.
    """
    parts = read_parts(staging, commit.id)
    closed = [close_log(staging, part, commit, tuning) for part in parts]
    known = {part.log for part in parts}.union(*(part.files for part in closed))
    for path in sorted(staging.iterdir()):
        if path.name.startswith(SESSIONS) and path.suffix in _STAGED and path.name not in known:
            raise FormatError(f"{path} is staged, but the part of its session is missing or does not list it.")
    return closed


def close_log(staging: Path, part: Part, commit: Marker, tuning: Tuning) -> Part:
    """Return the part of an ended session, completed from its log. Writes the rows of the log to a table file.

    Raises FormatError (the log is damaged), StorageError.
    """
    if not part.log:
        return part
    rows: dict[bytes, bytes | None] = {}
    frames = read_frames(staging / part.log)
    for frame in frames:
        rows.update(frame.rows)
    files: tuple[str, ...] = ()
    seals: dict[FileName, Seal] = {}
    if frames:
        last = frames[-1]
        files, seals = last.files, last.seals
        part = replace(part, rows=last.changes, written=last.written, counts=last.counts)
    if rows:
        name = f"{part.log}.sst"
        if not files:
            rows[MARKER_KEY] = commit.encode()
        write_table_file(staging / name, sorted(rows.items()), tuning)
        files, seals = (*files, name), {**seals, name: seal_file(staging / name)}
    return replace(part, files=files, seals=seals, log="")


def declare(meta: StoreMeta, states: Sequence[tuple[str, Descriptor]]) -> tuple[StoreMeta, tuple[PartState, ...]]:
    """Find or create keyed ``states`` in this order: all sessions on one base get the same numbers.

    Raises InvalidInputError if the key columns or their order, the types, the kind or the key groups of a state would
    change.
    """
    declared = []
    for name, descriptor in states:
        _check_unchanged(name, meta, descriptor)
        meta, number = meta.with_state(name, descriptor, keyed=True)
        declared.append(PartState(name, number, descriptor))
    return meta, tuple(declared)


def _check_unchanged(name: str, meta: StoreMeta, descriptor: Descriptor) -> None:
    known = meta.state(name)
    if known is None:
        return
    if not have_same_keys(known.descriptor, descriptor):
        raise _make_change_error(name, "key_schema", known.descriptor.key_schema, descriptor.key_schema)
    for what in ("value_schema", "key_encoder"):
        stored, declared = getattr(known.descriptor, what), getattr(descriptor, what)
        if stored != declared and not (what == "value_schema" and _goes_on(stored, declared)):
            raise _make_change_error(name, what, stored, declared)


def _make_change_error(name: str, what: str, stored: object, declared: object) -> InvalidInputError:
    return InvalidInputError(f"State {name!r} is stored with {what} {stored}, but the program declares {declared}.")


def _goes_on(stored: object, declared: object) -> bool:
    """Return whether ``declared`` has all stored schemas of values under the same numbers."""
    if not isinstance(stored, dict) or not isinstance(declared, dict) or stored.keys() != declared.keys():
        return False
    for what, old in stored.items():
        before, now = _schemas(old), _schemas(declared[what])
        if before is None or now is None or now[: len(before)] != before:
            return False
    return True


def _schemas(of_values: object) -> list[object] | None:
    schemas = of_values.get("schemas") if isinstance(of_values, dict) else None
    return schemas if isinstance(schemas, list) else None


@dataclass(frozen=True)
class Joined:
    """The union of all parts."""

    meta: StoreMeta
    files: Sequence[str]
    row_changes: Mapping[int, int]
    metrics: Mapping[str, int]
    seals: Seals
    digests: Mapping[int, str]


def join(meta: StoreMeta, parts: Sequence[Part]) -> Joined:
    """Return ``meta`` with the states of all parts, all files in order, and the sums of the row count changes.

    Raises InvalidInputError if a session and the store number a state differently, or as ``declare``.
    """
    files: list[str] = []
    seals: dict[FileName, Seal] = {}
    rows: dict[int, int] = {}
    digests: dict[int, str] = {}
    for part in parts:
        meta, declared = declare(meta, [(state.name, state.descriptor) for state in part.states])
        if declared != part.states:
            raise InvalidInputError(
                f"A worker wrote states {[(state.name, state.number) for state in part.states]}, "
                f"but the numbers in this store are {[(state.name, state.number) for state in declared]}.",
                hint="All workers of a query must run the same program and the same release of pyspark-ckpt.",
            )
        files.extend(part.files)
        seals.update(part.seals)
        digests.update(part.digests)
        for number, change in part.rows.items():
            rows[number] = rows.get(number, 0) + change
    metrics = Counter(worker_rows=sum(part.written for part in parts))
    for part in parts:
        metrics.update(part.counts)
    return Joined(meta, files, rows, metrics, seals, digests)
