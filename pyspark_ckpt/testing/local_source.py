"""The rows of the last batch, read in the local databases of a query: no stored object is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from pyspark_ckpt.offline.reading.row_location import find_partition, find_range
from pyspark_ckpt.offline.reading.rows.state_codec import Wanted
from pyspark_ckpt.offline.reading.sources import Rows
from pyspark_ckpt.offline.reading.stored_state import StoredState
from pyspark_ckpt.operators.session.views import open_reader
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.format.keys import state_range
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.transactions.ticket import Ticket


class LocalSource:
    """See ``Source``."""

    def __init__(self, operator: Operator, partitions: Sequence[Ticket]) -> None:
        """Read at the base of these tickets, one for each partition of ``operator``."""
        self.operators = [operator]
        self._partitions = partitions

    def count_metas(self, operator: Operator) -> int:  # noqa: ARG002 - there is one operator
        """See Source."""
        return len(self._partitions)

    def meta(self, identity: Identity) -> StoreMeta:
        """See Source."""
        return self._partitions[identity.partition].meta

    def require_version(self) -> None:
        """See Source: it has only the last one."""

    def count_splits(self, state: StoredState) -> int:  # noqa: ARG002 - all states have the same
        """See Source."""
        return len(self._partitions)

    def find_split(self, state: StoredState, key_hash: int) -> int:
        """See Source."""
        return find_partition(state, key_hash, len(self._partitions))

    def find_digest(self, state: StoredState) -> Digest | None:  # noqa: ARG002 - see Source
        """See Source: it is no savepoint."""
        return None

    def find_checksum(self, state: StoredState, split: int) -> str | None:  # noqa: ARG002 - see Source
        """See Source."""
        return None

    @contextmanager
    def rows(self, state: StoredState, split: int, own: StateMeta, wanted: Wanted | None = None) -> Iterator[Rows]:  # noqa: ARG002
        """See Source."""
        keys = state_range(own.number) if wanted is None else find_range(own, wanted)
        reader = open_reader(self._partitions[split])
        yield iter(()) if reader is None else chain.from_iterable(reader.portions(*keys))
