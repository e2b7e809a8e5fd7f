"""What Python workers stage beside the shim: each session's rows as table files, and what they mean.

A session of a worker writes its table files into the staging folder of its task's transaction and then, as one atomic
step, a *part*: which states it knows under which numbers, which files it wrote, how row counts change. A
transaction may have several sessions, even in several processes. The commit joins all parts that are
there; a session that died left none, and then its task has failed, too.

::

    <staging>/<session>.part.json    {"format": 3, "states": [...], "files": ["<session>-0.sst"], "rows": {"16384": 7},
                                      "seals": {"<session>-0.sst": {"bytes", "xxh64"}}, "commit": "<id>", ..., "xxh3"}

A part has its own checksum, and the files that are named like those of a session must be in a part: one that was lost
is not taken for a session that has staged nothing.
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
from pyspark_ckpt.state_store.format.keys import CommitId
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta, has_keys_of
from pyspark_ckpt.state_store.json_objects import Change, Count, check_format, decode_as, seal, unseal
from pyspark_ckpt.state_store.local.files import publish
from pyspark_ckpt.state_store.plain_files import read_plain
from pyspark_ckpt.state_store.transactions.staged_log import LOG, read_frames
from pyspark_ckpt.state_store.transactions.staged_tables import Seal, Seals, seal_file

PART_FORMAT = 3
SUFFIX = ".part.json"
SESSIONS = ("worker-", "groups-")
"""What the names of sessions begin with, and those of all that they stage."""

_STAGED = (".sst", LOG)
_LOG_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,122}\.log")


class DeclaredState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state as a session works with it."""

    name: str
    number: int
    descriptor: Descriptor


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one session of a worker has staged.

    ``rows`` are changes of row counts by state number. ``written`` rows are in the files, whose ``seals`` are by name.
    ``counts`` are for the metrics of the commit, by their names in its report. Of a session with a ``log``, all of
    these are in the log. ``commit``: the id of what the transaction makes, so that no part is taken for another's.
    """

    states: tuple[DeclaredState, ...]
    files: tuple[str, ...]
    rows: dict[int, Change]
    written: Count
    counts: dict[str, Change]
    commit: CommitId
    log: str = ""
    format: int = PART_FORMAT
    seals: dict[str, Seal] = {}


def write_part(staging: Path, session: str, part: Part) -> None:
    """Publish what a session has staged: from now on the commit applies it."""
    publish(staging / f"{session}{SUFFIX}", seal(part))


def read_parts(staging: Path, commit_id: CommitId) -> list[Part]:
    """Every part in the staging folder of a commit, in a fixed order.

    Raises FormatError for one that is not what was written, or of another commit; OSError.
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


def close_parts(staging: Path, commit_id: CommitId, tuning: Tuning) -> list[Part]:
    """Every part of a commit, with the rows of its log in a table file.

    Raises FormatError for what is not what was written, and if a session has staged files that are in no part.
    """
    parts = read_parts(staging, commit_id)
    closed = [close_log(staging, part, tuning) for part in parts]
    known = {part.log for part in parts}.union(*(part.files for part in closed))
    for path in sorted(staging.iterdir()):
        if path.name.startswith(SESSIONS) and path.suffix in _STAGED and path.name not in known:
            raise FormatError(f"{path} is staged, and the part of its session is missing or does not list it.")
    return closed


def close_log(staging: Path, part: Part, tuning: Tuning) -> Part:
    """The part of a session that has ended: what its log says, with the log's rows in a table file.

    Raises FormatError for a damaged log, StorageError.
    """
    if not part.log:
        return part
    rows: dict[bytes, bytes | None] = {}
    frames = read_frames(staging / part.log)
    for frame in frames:
        rows.update(frame.rows)
    files: tuple[str, ...] = ()
    seals: dict[str, Seal] = {}
    if frames:
        last = frames[-1]
        files, seals = last.files, last.seals
        part = replace(part, rows=last.changes, written=last.written, counts=last.counts)
    if rows:
        name = f"{part.log}.sst"
        write_table_file(staging / name, sorted(rows.items()), tuning)
        files, seals = (*files, name), {**seals, name: seal_file(staging / name)}
    return replace(part, files=files, seals=seals, log="")


def declare(meta: StoreMeta, states: Sequence[tuple[str, Descriptor]]) -> tuple[StoreMeta, tuple[DeclaredState, ...]]:
    """Find or create keyed ``states`` in this order: every session on one base comes to the same numbers.

    Raises InvalidInputError if the key columns or their order, the types, the kind or the key groups of a state would
    change.
    """
    declared = []
    for name, descriptor in states:
        _check_unchanged(name, meta, descriptor)
        meta, number = meta.with_state(name, descriptor, keyed=True)
        declared.append(DeclaredState(name, number, descriptor))
    return meta, tuple(declared)


def _check_unchanged(name: str, meta: StoreMeta, descriptor: Descriptor) -> None:
    known = meta.state(name)
    if known is None:
        return
    if not has_keys_of(known.descriptor, descriptor):
        raise _make_change_error(name, "key_schema", known.descriptor.key_schema, descriptor.key_schema)
    for what in ("value_schema", "key_encoder"):
        stored, declared = getattr(known.descriptor, what), getattr(descriptor, what)
        if stored != declared and not (what == "value_schema" and _goes_on(stored, declared)):
            raise _make_change_error(name, what, stored, declared)


def _make_change_error(name: str, what: str, stored: object, declared: object) -> InvalidInputError:
    return InvalidInputError(f"State {name!r} is stored with {what} {stored}, and the program declares {declared}.")


def _goes_on(stored: object, declared: object) -> bool:
    """Whether all schemas that values were written by are still known, under the same numbers."""
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
    """What all parts come to together."""

    meta: StoreMeta
    files: Sequence[str]
    row_changes: Mapping[int, int]
    metrics: Mapping[str, int]
    seals: Seals


def join(meta: StoreMeta, parts: Sequence[Part]) -> Joined:
    """The store ``meta`` with the states of all parts, their files in order, their changes of row counts together.

    Raises InvalidInputError if a session has another number for a state than the store gives it.
    """
    files: list[str] = []
    seals: dict[str, Seal] = {}
    rows: dict[int, int] = {}
    for part in parts:
        meta, declared = declare(meta, [(state.name, state.descriptor) for state in part.states])
        if declared != part.states:
            raise InvalidInputError(
                f"A worker wrote states {[(state.name, state.number) for state in part.states]}, "
                f"which this store knows as {[(state.name, state.number) for state in declared]}.",
                hint="All workers of a query must run the same program and the same release of pyspark-ckpt.",
            )
        files.extend(part.files)
        seals.update(part.seals)
        for number, change in part.rows.items():
            rows[number] = rows.get(number, 0) + change
    metrics = Counter(worker_rows=sum(part.written for part in parts))
    for part in parts:
        metrics.update(part.counts)
    return Joined(meta, files, rows, metrics, seals)
