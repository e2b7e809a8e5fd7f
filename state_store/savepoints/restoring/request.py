"""The request for a restore, its record in the target, its plan as shown to the user, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.display import count_text, html_table, size_text
from pyspark_ckpt.state_store.json_objects import (
    ClassName,
    Count,
    Location,
    Name,
    OperatorNumber,
    Partitions,
    RandomId,
    SourceName,
    StoreName,
)
from pyspark_ckpt.state_store.json_objects import QueryId as StoredQueryId

QueryId: TypeAlias = Literal["keep", "new"]


@dataclass(frozen=True)
class RestoreRequest:
    """The request for a restore. ``partitions``: None keeps their number. ``source_names``: of all sources, or empty.

    ``provider``: the class of Spark's provider that is to hold the state; empty for this store. ``replay_from``: the
    checkpoints whose plans of later batches are carried over; of several plans for a batch, the last counts.
    ``shares``: whether copied table files may be links.
    """

    partitions: int | None = None
    query_id: QueryId = "keep"
    uid_map: Mapping[str, str] = field(default_factory=dict)
    allow_non_restored_state: bool = False
    source_names: tuple[str, ...] = ()
    provider: str = ""
    replay_from: tuple[str, ...] = ()
    shares: bool = False


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The restore that began a target. A second run must request the same, of the same content.

    ``source_digest``: of the source's content, since another savepoint or checkpoint may be at its URL now. ``run``: a
    random id, so that a folder that is deleted and restored again is never taken for the earlier one. Both are empty in
    requests of earlier builds. ``replay_from``: the first checkpoint whose plans are carried over;
    ``replay_also_from``: the others. These two, ``source_names`` and ``provider`` are not written if they are empty:
    the record then equals that of builds that did not know them, and so does its digest in ``metadata``.
    """

    source: Location
    source_query: StoredQueryId
    version: Count
    partitions: Partitions
    uid_map: dict[Name, Name]
    query_id: StoredQueryId
    keeps_id: bool
    remote: Location
    source_digest: RandomId = ""
    run: RandomId = ""
    source_names: tuple[SourceName, ...] = ()
    provider: ClassName = ""
    replay_from: Location = ""
    replay_also_from: tuple[Location, ...] = ()

    def is_repeated_by(self, other: RecordedRequest) -> bool:
        """Return whether ``other`` is the same restore, apart from its random parts."""
        return msgspec.structs.replace(other, query_id=self.query_id, run=self.run) == self

    def matches(self, source: str, request: RestoreRequest, remote: str) -> bool:
        """Return whether it matches ``request``, as far as this is known without the source."""
        return (
            (self.source, self.remote, self.uid_map) == (source, remote, dict(request.uid_map))
            and self.keeps_id == (request.query_id == "keep")
            and request.partitions in (None, self.partitions)
            and request.source_names == self.source_names
            and request.provider == self.provider
            and request.replay_from == tuple(filter(None, (self.replay_from, *self.replay_also_from)))
        )


@dataclass(frozen=True)
class ProvenState:
    """A state that was moved. ``digest``: the same before and after."""

    operator: OperatorNumber
    store: StoreName
    name: Name
    digest: Digest


@dataclass(frozen=True)
class Restored:
    """The result of ``restore`` and ``rescale``: the finished ``checkpoint``, and the proof of its states.

    ``version``: of all its stores. ``states``: rows and digest of each, the same before and after. ``copied_bytes``: of
    objects copied unchanged. ``rewritten_bytes``: of rewritten files.
    """

    checkpoint: Location
    query_id: StoredQueryId
    version: Count
    partitions: Partitions
    states: tuple[ProvenState, ...]
    copied_bytes: Count
    rewritten_bytes: Count

    def __repr__(self) -> str:
        return (
            f"Restored({self.checkpoint}, continues after batch {self.version - 1}, "
            f"{count_text(self.partitions, 'partition')}, {count_text(len(self.states), 'state')}, "
            f"{size_text(self.copied_bytes)} copied, {size_text(self.rewritten_bytes)} rewritten)"
        )

    def _repr_html_(self) -> str:
        header = ("operator", "store", "state", "stored rows", "digest, before and after")
        rows = (
            (str(each.operator), each.store, each.name, each.digest.rows, each.digest.sum or "") for each in self.states
        )
        return html_table(repr(self), header, rows)


class FinishedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A restore that has moved all state. At most ``metadata``, ``at_end`` and the clean-up remain."""

    request: RecordedRequest
    result: Restored


@dataclass(frozen=True)
class ExplainedOperator:
    """What a restore does with one operator. ``expected_rows``: of each new partition; empty if stores are copied.

    If rows were read to count them, ``rows`` is the sum of ``expected_rows``: it includes rows of expiry indexes, and
    leaves out rows that belong to no key. ``rows`` is None, and ``expected_rows`` is empty, if the state is in one of
    Spark's stores and was not read. ``is_counted``: whether rows were read to count them; otherwise an even spread is
    assumed.
    """

    number: int
    name: str
    layout: str
    old_partitions: int
    partitions: int
    rows: int | None
    objects: int
    size_bytes: int
    how: str
    expected_rows: tuple[int, ...]
    is_counted: bool = False


@dataclass(frozen=True)
class RestoreExplanation:
    """What a restore does, and about how many seconds it takes on the processors of this machine.

    ``seconds`` is None if the number of rows is not known.
    """

    operators: tuple[ExplainedOperator, ...]
    processors: int
    seconds: float | None
