"""The files that Spark writes into a checkpoint next to state: those a savepoint copies and a restore changes.

::

    metadata                              {"id": "<query id>"}
    offsets/<batch>                       v1 or v2, then JSON with the confs that the query keeps, then its offsets
    commits/<batch>                       v1, v2 or v3, then JSON, perhaps with the ids of state (see commit_log)
    sources/...                           files of the sources
    state/<operator>/_metadata/...        name, stores and number of partitions of an operator
    state/<operator>/_stateSchema/...     schemas of transformWithState
    state/<operator>/0/<store>/_metadata/schema

A restore may have added _ckpt/non-restored-state.allowed. A query with inputs that can be idle also has
_ckpt/watermarks/<batch>, v1 and JSON, which the jar writes before Spark commits the batch.

To continue after batch N, a query needs the offsets of N - 1 and N and the commit of N. If batch N + 1 was planned and
not committed, it runs again with its offsets: a sink that has seen some of its rows then sees the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import (
    CHECKPOINT_FOLDER,
    NON_RESTORED_STATE_NAME,
    PROVIDER_CLASS,
    PROVIDER_CONF,
    WATERMARKS_FOLDER,
)
from pyspark_ckpt.state_store.json_objects import MAX_LONG, Count

QUERY = "metadata"
PARTITIONS_CONF = "spark.sql.shuffle.partitions"
"""The conf in the offset log that holds the number of partitions of stateful operators."""

LOGS = ("offsets", "commits")
_LOGS = tuple(f"{log}/" for log in (*LOGS, WATERMARKS_FOLDER))
_STATE_ROWS = re.compile(r"state/[0-9]+/[0-9]+/(?!(?:[^/]+/)?_metadata/)")
_OPERATOR = re.compile(r"state/([0-9]+)/_metadata/(?:metadata|v2/[0-9]+)")
_LATER_METADATA = re.compile(r"(state/[0-9]+/_metadata/v2)/([0-9]{1,19})")
BATCH = re.compile(r"[0-9]{1,19}")
_PARTITIONS = re.compile(r"[0-9]{1,9}")

Ids = Mapping[str, Sequence[Sequence[str]]]
"""The ids of state that a commit names, by operator, partition and store."""


class QueryFile(msgspec.Struct, frozen=True):
    """One of these files, as it was copied."""

    name: str
    size_bytes: Count
    xxh3: str

    @classmethod
    def of(cls, name: str, content: bytes) -> QueryFile:
        """Return the entry of a file with this content."""
        return cls(name, len(content), xxhash.xxh3_128_hexdigest(content))


class Target(Protocol):
    """Where these files are written."""

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there. Raises StorageError."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is not there. Raises StorageError."""
        ...


def list_batches(checkpoint: BlobPlace, log: str) -> set[int]:
    """Return the batches that have an entry in a log: ``offsets`` or ``commits``. Raises StorageError."""
    names = (blob.name.rpartition("/")[2] for blob in checkpoint.list(log))
    return {batch for name in names if BATCH.fullmatch(name) and (batch := int(name)) < MAX_LONG}


def log_names(checkpoint: BlobPlace, batch: int) -> Iterator[str]:
    """Yield the names of the logs that the query needs to continue after ``batch``, and of the files of its sources.

    The logs come first: a source records what a batch is to read before the offsets are logged. Raises NotFoundError if
    the query has deleted logs of the batch, InvalidInputError for a link to a folder, StorageError.
    """
    watermarks = find_watermarks(checkpoint, batch)  # before the logs, which the query keeps no longer
    wanted = {f"offsets/{each}" for each in (batch - 1, batch) if each >= 0} | {f"commits/{batch}"}
    found = {blob.name for folder in ("offsets", "commits") for blob in checkpoint.list(folder)}
    missing = sorted(wanted - found)
    if missing:
        raise NotFoundError(
            f"{checkpoint.url}/{missing[0]} is missing, and no query can continue after batch {batch} without it.",
            hint="If the query runs, raise spark.sql.streaming.minBatchesToRetain: it keeps the logs of that many "
            "batches. If it has stopped, restore the file from a backup.",
        )
    yield from sorted(found & (wanted | {f"commits/{batch - 1}", f"offsets/{batch + 1}"}))
    yield from watermarks
    yield from _walk(checkpoint, "sources")


def find_watermarks(checkpoint: BlobPlace, batch: int) -> list[str]:
    """Return the file that a batch has left about inputs that can be idle, if it has. Raises StorageError."""
    name = f"{WATERMARKS_FOLDER}/{batch}"
    return [blob.name for blob in checkpoint.list(WATERMARKS_FOLDER, prefix=str(batch)) if blob.name == name]


def operator_names(checkpoint: BlobPlace) -> Iterator[str]:
    """Yield the names of the files that describe operators, stores and types, and that allow undeclared state.

    Raises InvalidInputError for a link to a folder, StorageError.
    """
    yield from _walk(checkpoint, "state", but_for=_STATE_ROWS)
    yield from (blob.name for blob in checkpoint.list(CHECKPOINT_FOLDER, prefix=NON_RESTORED_STATE_NAME))


def list_operator_files(checkpoint: BlobPlace) -> list[str]:
    """Return the names of the files that describe operators, stores and types. Raises StorageError.

    Links to folders are left out, and so are older forms of the metadata of an operator.
    """
    names = [blob.name for blob in checkpoint.walk("state") if not _STATE_ROWS.match(blob.name)]
    newest: dict[str, int] = {}
    for name in names:
        if match := _LATER_METADATA.fullmatch(name):
            newest[match[1]] = max(newest.get(match[1], 0), int(match[2]))
    return [
        name
        for name in names
        if not name.endswith("/")
        and ((match := _LATER_METADATA.fullmatch(name)) is None or int(match[2]) == newest[match[1]])
    ]


def _walk(checkpoint: BlobPlace, folder: str, but_for: re.Pattern[str] | None = None) -> Iterator[str]:
    """Yield the names of all objects below a folder except ``but_for``. Raises InvalidInputError for a folder link."""
    for blob in checkpoint.walk(folder):
        if but_for is not None and but_for.match(blob.name):
            continue
        if blob.name.endswith("/"):
            raise InvalidInputError(
                f"{checkpoint.url}/{blob.name} is a link to another folder: a copy would not contain that folder.",
                hint="Replace the link by the folder itself.",
            )
        yield blob.name


def read_partitions(checkpoint: BlobPlace, batch: int) -> int:
    """Return the number of partitions that ``batch`` ran with. Raises NotFoundError, FormatError, StorageError."""
    name = f"offsets/{batch}"
    return _partitions_in(checkpoint.get(name), f"{checkpoint.url}/{name}")


def _partitions_in(content: bytes, where: str) -> int:
    found = _confs(_lines(content, where)[1], where)[PARTITIONS_CONF]
    if _PARTITIONS.fullmatch(str(found)) is None:
        raise FormatError(f"{where} has {found!r} as {PARTITIONS_CONF}, which must be a whole number.")
    return int(found)


def refuse_other_provider(checkpoint: BlobPlace, batch: int) -> None:
    """Raise InvalidInputError if ``batch`` ran with another state store provider; FormatError, StorageError."""
    try:
        found = _read_confs(checkpoint, batch).get(PROVIDER_CONF, PROVIDER_CLASS)
    except NotFoundError:  # the query has deleted the log since: this batch is not asked for again
        return
    if found != PROVIDER_CLASS:
        raise InvalidInputError(
            f"{checkpoint.url}: the query keeps its state in {found}, not in pyspark-ckpt.",
            hint="State of another provider cannot be read or moved. Start the query with an empty "
            "checkpointLocation, in a session that pyspark_ckpt.configure(builder) has set up.",
        )


def _read_confs(checkpoint: BlobPlace, batch: int) -> dict[str, Any]:
    name = f"offsets/{batch}"
    where = f"{checkpoint.url}/{name}"
    return _confs(_lines(checkpoint.get(name), where)[1], where)


class LogRewriter:
    """Changes the files of a query for a restore: its number of partitions, the ids of its state, its own id."""

    def __init__(self, batch: int, partitions: int, ids: Ids, query_id: str) -> None:
        """``ids``: the ids that the commit of ``batch`` is to name, if it names any."""
        self._batch = batch
        self._partitions = partitions
        self._ids = ids
        self._query_id = query_id

    def __call__(self, name: str, content: bytes, where: str) -> bytes:
        """Return the new content of an object. Raises FormatError that names ``where`` the old content is."""
        if _OPERATOR.fullmatch(name) is not None:
            return _change(content, where, self._operator)
        if name == QUERY:
            return self._query(content, where)
        if name.startswith("offsets/"):
            return _change(content, where, lambda entry: self._offsets(entry, where))
        if name == f"commits/{self._batch}":
            return _change(content, where, self._commit)
        return content

    def _query(self, content: bytes, where: str) -> bytes:
        return msgspec.json.encode(_json(content, where) | {"id": self._query_id})

    def _offsets(self, entry: dict[str, Any], where: str) -> None:
        _confs_in(entry, where)[PARTITIONS_CONF] = str(self._partitions)

    def _commit(self, entry: dict[str, Any]) -> None:
        if entry.get("stateUniqueIds"):
            entry["stateUniqueIds"] = dict(self._ids)

    def _operator(self, entry: dict[str, Any]) -> None:
        for store in entry["stateStoreInfo"]:
            store["numPartitions"] = self._partitions


def _change(content: bytes, where: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    lines = _lines(content, where)
    entry = _json(lines[1], where)
    try:
        change(entry)
    except (LookupError, TypeError, AttributeError) as problem:
        raise FormatError(f"{where} is not as Spark writes it: an entry is missing or wrong: {problem!r}.") from problem
    lines[1] = msgspec.json.encode(entry)
    return b"\n".join(lines)


def _lines(content: bytes, where: str) -> list[bytes]:
    """Return the lines: the version, the JSON and what follows."""
    lines = content.split(b"\n")
    if len(lines) < 2 or not re.fullmatch(rb"v[0-9]{1,9}", lines[0]):  # noqa: PLR2004 - version and JSON
        raise FormatError(f"{where} does not begin with a version and a line of JSON.")
    return lines


def _json(line: bytes, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def _confs(line: bytes, where: str) -> dict[str, Any]:
    return _confs_in(_json(line, where), where)


def _confs_in(entry: dict[str, Any], where: str) -> dict[str, Any]:
    confs = entry.get("conf")
    if not isinstance(confs, dict) or PARTITIONS_CONF not in confs:
        raise FormatError(f"{where} does not say with how many partitions the batch ran ({PARTITIONS_CONF}).")
    return confs


ContentRewrite = Callable[[str, bytes, str], bytes]


def check_content(name: str, content: bytes, where: str) -> bytes:
    """Return the same content. Raises FormatError if a log is cut: in a copy that would be noticed too late."""
    if name == QUERY:
        _json(content, where)
    elif name.startswith(_LOGS):
        _json(_lines(content, where)[1], where)
    return content


class LogProof:
    """Accepts the files that a savepoint lists, as they were when it was taken, and nothing else."""

    def __init__(self, files: Iterable[QueryFile], change: ContentRewrite = check_content) -> None:
        """Apply ``change`` to objects that match one of the ``files``."""
        self._files = {file.name: file for file in files}
        self._left = set(self._files)
        self._change = change

    def __call__(self, name: str, content: bytes, where: str) -> bytes:
        """See ContentRewrite. Raises FormatError."""
        if name not in self._files:
            raise FormatError(f"{where} is not of the savepoint: something has written it there since.")
        if self._files[name] != QueryFile.of(name, content):
            raise FormatError(
                f"{where} is damaged: it is not what the savepoint was taken with.",
                hint="Copy the savepoint again from its original, or take another.",
            )
        self._left.discard(name)
        return self._change(name, content, where)

    def require_all(self, place: BlobPlace) -> None:
        """Raise NotFoundError if a listed object of ``place`` was not checked."""
        if self._left:
            raise NotFoundError(
                f"{place.url}/{min(self._left)} is missing, which the savepoint was taken with.",
                hint="Copy the savepoint again from its original, or take another.",
            )


def find_damage(place: BlobPlace, batch: int, files: Sequence[QueryFile]) -> list[str]:
    """Return the damage in a savepoint's files of a query for which a restore refuses it. Raises StorageError."""
    proof, known, problems = LogProof(files), {file.name for file in files}, list[str]()

    def prove(names: Iterable[str]) -> None:
        for name in names:
            try:
                proof(name, place.get(name), f"{place.url}/{name}")
            except (FormatError, NotFoundError) as problem:
                problems.append(problem.message)

    prove(sorted(known))
    try:
        prove(name for name in [*log_names(place, batch), *operator_names(place), QUERY] if name not in known)
    except NotFoundError as problem:
        if not problems:  # else the missing file is already among them
            problems.append(problem.message)
    return problems


def copy_logs(source: BlobPlace, batch: int, target: Target, change: ContentRewrite = check_content) -> list[QueryFile]:
    """Copy the logs of a query as of ``batch``, and the files of its sources.

    Do this first: a running query soon deletes its logs. ``change`` makes the new content of an object from its name,
    its content and where that is. Raises NotFoundError, FormatError, StorageError.
    """
    return _copy(lambda: log_names(source, batch), source, target, change)


def read_logs(source: BlobPlace, batch: int) -> dict[str, bytes]:
    """Return the logs that a query needs to continue after ``batch``, by name, to write them with ``write_logs``.

    Do this first, as ``copy_logs``. What would be refused in a copy of the logs or of the sources is refused here.
    Raises NotFoundError, FormatError, InvalidInputError (a link to a folder), StorageError.
    """
    names = [name for name in log_names(source, batch) if name.startswith(_LOGS)]
    logs = {name: check_content(name, source.get(name), f"{source.url}/{name}") for name in names}
    name = f"offsets/{batch}"
    _partitions_in(logs[name], f"{source.url}/{name}")
    return logs


def write_logs(logs: Mapping[str, bytes], target: Target) -> list[QueryFile]:
    """Write logs into ``target``. Raises StorageError."""
    for name, content in logs.items():
        target.put(name, content)
    return [QueryFile.of(name, content) for name, content in logs.items()]


def copy_sources(source: BlobPlace, target: Target) -> list[QueryFile]:
    """Copy the files of the sources of a query, after its logs were read. Raises as ``copy_logs``."""
    return _copy(lambda: _walk(source, "sources"), source, target, check_content)


def copy_operators(source: BlobPlace, target: Target, change: ContentRewrite = check_content) -> list[QueryFile]:
    """Copy the files that describe operators, without their state. Raises as ``copy_logs``."""
    return _copy(lambda: operator_names(source), source, target, change)


def copy_id(source: BlobPlace, target: Target, change: ContentRewrite = check_content) -> list[QueryFile]:
    """Copy ``metadata``, which makes the target a checkpoint. Raises as ``copy_logs``."""
    return _copy(lambda: iter([QUERY]), source, target, change)


def _copy(
    names: Callable[[], Iterator[str]], source: BlobPlace, target: Target, change: ContentRewrite
) -> list[QueryFile]:
    """Copy objects, also while a query replaces some by others that say the same: then only the new ones are kept."""
    copied: set[str] = set()
    while True:
        wanted = list(names())
        for name in sorted(copied.difference(wanted)):
            target.delete(name)
        copied.intersection_update(wanted)
        files: list[QueryFile] = []
        try:
            for name in wanted:
                files.append(_copy_object(name, source, target, change))
                copied.add(name)
        except NotFoundError:
            if set(wanted) <= set(names()):
                raise
        else:
            return files


def _copy_object(name: str, source: BlobPlace, target: Target, change: ContentRewrite) -> QueryFile:
    content = change(name, source.get(name), f"{source.url}/{name}")
    target.put(name, content)
    return QueryFile.of(name, content)
