"""What Spark writes into a checkpoint beside state, as far as a savepoint takes it and a restore changes it.

::

    metadata                              {"id": "<query id>"}
    offsets/<batch>                       v1 or v2, then JSON with the confs that the query keeps, then its offsets
    commits/<batch>                       v1, v2 or v3, then JSON, perhaps with the ids of state (see commit_log)
    sources/...                           what sources remember
    state/<operator>/_metadata/...        name, stores and number of partitions of an operator
    state/<operator>/_stateSchema/...     schemas of transformWithState
    state/<operator>/0/<store>/_metadata/schema

A query goes on behind batch N from the offsets of N - 1 and N and the commit of N. A batch N + 1 that was planned and
not committed runs again with its offsets, so that a sink that has seen a part of it sees the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError

QUERY = "metadata"
PARTITIONS_CONF = "spark.sql.shuffle.partitions"
"""Under this name the offset log keeps the number of partitions of stateful operators."""

_STATE_ROWS = re.compile(r"state/[0-9]+/[0-9]+/(?!(?:[^/]+/)?_metadata/)")
_OPERATOR = re.compile(r"state/([0-9]+)/_metadata/(?:metadata|v2/[0-9]+)")
_LOG = re.compile(r"(?:offsets|commits)/([0-9]{1,19})")

Ids = Mapping[str, Sequence[Sequence[str]]]
"""The ids of state that a commit names: by operator, partition and store."""


def names_of(checkpoint: BlobPlace, batch: int) -> Iterator[str]:
    """Names of everything but state that a query needs to go on behind ``batch``. One listing. Raises StorageError."""
    for blob in checkpoint.walk():
        logged = _LOG.fullmatch(blob.name)
        if logged is not None:
            is_needed = int(logged[1]) in (batch - 1, batch) or blob.name == f"offsets/{batch + 1}"
        else:
            is_needed = blob.name.startswith("sources/") or (
                blob.name.startswith("state/") and not _STATE_ROWS.match(blob.name)
            )
        if is_needed or blob.name == QUERY:
            yield blob.name


def partitions_of(checkpoint: BlobPlace, batch: int) -> int:
    """The number of partitions that ``batch`` ran with. Raises NotFoundError, FormatError, StorageError."""
    name = f"offsets/{batch}"
    where = f"{checkpoint.url}/{name}"
    found = _confs(_lines(checkpoint.get(name), where)[1], where)[PARTITIONS_CONF]
    if not str(found).isdigit():
        raise FormatError(f"{where} has {found!r} as {PARTITIONS_CONF}.")
    return int(found)


class Rewriting:
    """What a restore changes of the files of a query: its number of partitions, the ids of its state, its own id."""

    def __init__(self, batch: int, partitions: int, ids: Ids, query_id: str) -> None:
        """``ids``: those that the commit of ``batch`` is to name, if it names any."""
        self._batch = batch
        self._partitions = partitions
        self._ids = ids
        self._query_id = query_id

    def __call__(self, name: str, content: bytes, where: str) -> bytes:
        """The new content of an object. Raises FormatError that names ``where`` the old one is."""
        if _OPERATOR.fullmatch(name) is not None:
            return _changed(content, where, self._operator)
        if name == QUERY:
            return self._query(content, where)
        if name.startswith("offsets/"):
            return _changed(content, where, lambda entry: self._offsets(entry, where))
        if name == f"commits/{self._batch}":
            return _changed(content, where, self._commit)
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


def _changed(content: bytes, where: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    lines = _lines(content, where)
    entry = _json(lines[1], where)
    try:
        change(entry)
    except (LookupError, TypeError, AttributeError) as problem:
        raise FormatError(f"{where} is not as Spark writes it: {problem!r} is wrong in it.") from problem
    lines[1] = msgspec.json.encode(entry)
    return b"\n".join(lines)


def _lines(content: bytes, where: str) -> list[bytes]:
    """The version, the JSON and what follows."""
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
        raise FormatError(f"{where} does not say by how many partitions the batch ran ({PARTITIONS_CONF}).")
    return confs


Change = Callable[[str, bytes, str], bytes]


def copy_query(source: BlobPlace, batch: int, target: BlobPlace, change: Change | None = None) -> None:
    """Copy all but the state of a query as of ``batch``; ``metadata``, which makes it one, last.

    ``change``, if given, makes the new content of an object from its name, its content and where that is. A running
    query may clean up what sources remember while they are copied: then what is there now is copied. Raises
    NotFoundError, FormatError, StorageError.
    """
    while True:
        names = set(names_of(source, batch))
        try:
            for name in sorted(names, key=lambda name: (name == QUERY, name)):
                content = source.get(name)
                target.put(name, content if change is None else change(name, content, f"{source.url}/{name}"))
        except NotFoundError:
            if names <= set(names_of(source, batch)):
                raise
            continue
        return
