"""What a restore changes in the files of a query."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF, change_entry, decode_json, find_confs
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY

_OPERATOR = re.compile(r"state/([0-9]+)/_metadata/(?:metadata|v2/[0-9]+)")

Ids = Mapping[str, Sequence[Sequence[str]]]
"""The ids of state that a commit names, by operator, partition and store."""


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
            return change_entry(content, where, self._operator)
        if name == QUERY:
            return self._query(content, where)
        if name.startswith("offsets/"):
            return change_entry(content, where, lambda entry: self._offsets(entry, where))
        if name == f"commits/{self._batch}":
            return change_entry(content, where, self._commit)
        return content

    def _query(self, content: bytes, where: str) -> bytes:
        return msgspec.json.encode(decode_json(content, where) | {"id": self._query_id})

    def _offsets(self, entry: dict[str, Any], where: str) -> None:
        find_confs(entry, where)[PARTITIONS_CONF] = str(self._partitions)

    def _commit(self, entry: dict[str, Any]) -> None:
        if entry.get("stateUniqueIds"):
            entry["stateUniqueIds"] = dict(self._ids)

    def _operator(self, entry: dict[str, Any]) -> None:
        for store in entry["stateStoreInfo"]:
            store["numPartitions"] = self._partitions
