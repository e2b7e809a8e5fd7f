"""The changes that a restore makes to the files of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from pyspark_ckpt.state_store.checkpoints.query.content import check_content
from pyspark_ckpt.state_store.checkpoints.query.entries import (
    PARTITIONS_CONF,
    change_entry,
    decode_json,
    find_confs,
    split_lines,
)
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.checkpoints.query.source_names import SourceNames
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF, REPLAY_FOLDER

_OPERATOR = re.compile(r"state/[0-9]+/_metadata/(?:metadata|v2/[0-9]+)")
_SCHEMA_FILE = re.compile(r".*/(state/[0-9]+/_stateSchema/.+)", re.DOTALL)
_OF_S3 = re.compile(r"s3[an]?(?=:)")
_WITHOUT_IDS = b"v1"
"""The version of the commit log in checkpoint format 1."""
_OF_SPARKS = {
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
"""The keys under which Spark records the files of its own providers, where it does."""

Ids = Mapping[str, Sequence[Sequence[str]]]
"""The ids of state that a commit names, by operator, partition and store."""


class LogRewriter:
    """Changes the files of a query for a restore: partitions, ids of state, its own id, paths, names of sources."""

    def __init__(
        self,
        batch: int,
        partitions: int,
        ids: Ids,
        query_id: str,
        target: str,
        names: SourceNames | None = None,
        provider: str = PROVIDER_CLASS,
    ) -> None:
        """``ids``: for the commit of ``batch`` to name, if it names any. ``names``: of the sources, if they get names.

        ``target``: the URL of the new checkpoint. ``provider``: the class of the provider that holds the state there;
        one of Spark's own uses checkpoint format 1.
        """
        self._batch = batch
        self._target = target
        self._partitions = partitions
        self._ids = ids
        self._query_id = query_id
        self._names = names
        self._provider = provider

    def __call__(self, name: str, content: bytes, where: str) -> bytes:
        """Return the new content of an object. Raises FormatError that names ``where``, the old location."""
        if describes_operator(name):
            return change_entry(content, where, self._operator)
        if name == QUERY:
            return self._query(content, where)
        if name.startswith(("offsets/", f"{REPLAY_FOLDER}/")):
            changed = change_entry(content, where, lambda entry: self._offsets(entry, where))
            return changed if self._names is None else self._names.name_offsets(changed, where)
        if name.startswith("commits/") and self._provider != PROVIDER_CLASS:
            _, *rest = split_lines(change_entry(content, where, _forget_ids), where)
            return b"\n".join([_WITHOUT_IDS, *rest])
        if name == f"commits/{self._batch}":
            return change_entry(content, where, self._commit)
        return check_content(name, content, where)

    def _query(self, content: bytes, where: str) -> bytes:
        return msgspec.json.encode(decode_json(content, where) | {"id": self._query_id})

    def _offsets(self, entry: dict[str, Any], where: str) -> None:
        confs = find_confs(entry, where)
        confs[PARTITIONS_CONF] = str(self._partitions)
        if PROVIDER_CONF in confs:  # it may name another provider, from which the state was moved
            confs[PROVIDER_CONF] = self._provider
        if self._provider != PROVIDER_CLASS:
            confs.update({conf: value for conf, value in _OF_SPARKS.items() if conf in confs})

    def _commit(self, entry: dict[str, Any]) -> None:
        if entry.get("stateUniqueIds"):
            entry["stateUniqueIds"] = dict(self._ids)

    def _operator(self, entry: dict[str, Any]) -> None:
        change_stores(entry, self._partitions, lambda path: move_schema_file(path, self._target))


def _forget_ids(entry: dict[str, Any]) -> None:
    entry.pop("stateUniqueIds", None)


def describes_operator(name: str) -> bool:
    """Return whether a file of a query is Spark's metadata of an operator."""
    return _OPERATOR.fullmatch(name) is not None


def change_stores(entry: dict[str, Any], partitions: int, move: Callable[[str], str]) -> None:
    """Give the stores in the metadata of an operator a number of partitions, and the paths that ``move`` returns."""
    for store in entry["stateStoreInfo"]:
        store["numPartitions"] = partitions
        if paths := store.get("stateSchemaFilePaths"):
            store["stateSchemaFilePaths"] = list(map(move, paths))


def find_schema_file(path: str) -> str | None:
    """Return the name of one of Spark's schema files in its checkpoint, by the path that Spark has stored."""
    found = _SCHEMA_FILE.fullmatch(path)
    return None if found is None else found[1]


def move_schema_file(path: str, checkpoint: str) -> str:
    """Return the path of a schema file of transformWithState in ``checkpoint``, a URL. Spark stores absolute paths.

    The scheme of a bucket stays as Spark wrote it, or becomes S3A's: few Sparks know ``s3:``.
    """
    name = find_schema_file(path)
    if name is None:
        return path
    url = f"file:{checkpoint}" if checkpoint.startswith("/") else checkpoint
    if url.startswith("s3:"):
        before = _OF_S3.match(path)
        url = url.replace("s3", before[0] if before else "s3a", 1)
    return f"{url.rstrip('/')}/{name}"
