"""The stored rows of one state, split by split: how comparisons and change feeds read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_ckpt.offline.reading.catalog import Catalog
from pyspark_ckpt.offline.reading.row_location import prove_copy
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS
from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec
from pyspark_ckpt.offline.reading.sources import Source, StoresSource, Values
from pyspark_ckpt.offline.reading.stored_state import StoredState
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InternalError
from pyspark_ckpt.state_store.format.key_groups import read_max_parallelism
from pyspark_ckpt.state_store.format.keys import state_head
from pyspark_ckpt.state_store.format.meta import StateMeta


@dataclass(frozen=True)
class Splits:
    """The splits of a state at a version: its partitions, or the files of a canonical savepoint.

    All methods raise FormatError, NotFoundError, StorageError.
    """

    checkpoint: Checkpoint
    version: int
    source: Source
    catalog: Catalog
    state: StoredState

    def count(self) -> int:
        """Return how many splits there are."""
        return self.source.count_splits(self.state)

    @property
    def shown(self) -> Sequence[int]:
        """The splits whose rows are shown: of a broadcast state, one of many equal copies."""
        return range(1 if self.state.kind == BROADCASTS else self.count())

    def find_meta(self, split: int) -> StateMeta | None:
        """Return the state as a split describes it; None if the split does not have it."""
        return self.catalog.find_meta(self.state, split)

    @contextmanager
    def open_rows(self, split: int) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """Give the stored keys and values of a split, in key order."""
        own = self.find_meta(split)
        if own is None or not own.rows:
            yield iter(())
            return
        with self.source.rows(self.state, split, own) as rows:
            yield prove_copy(own, self.state.whose, rows)

    def describe(self, split: int) -> tuple[StateCodec, bool, bytes]:
        """Return the codec of the rows of a split, whether they are in key order, and how their keys begin.

        The split must have the state.
        """
        own = self.find_meta(split)
        if own is None:
            raise InternalError(f"{self.state.whose} has no rows in partition {split}.")
        return self.state.codec(own.descriptor), own.descriptor.ordered, state_head(own.number)

    def find_touched(self, older: Splits, split: int) -> list[bytes] | None:
        """Return the stored keys that commits have named since ``older``, an older version of the same checkpoint.

        None if only reading all rows could show it.
        """
        own, known = self.find_meta(split), older.find_meta(split)
        is_same = self.checkpoint.place.url == older.checkpoint.place.url and self.version >= older.version
        if not is_same or own is None or known is None or own.number != known.number:
            return None
        if not isinstance(self.source, StoresSource):
            return None
        return self.source.find_touched(self.state, split, own, older.version)

    @contextmanager
    def look_up(self, split: int) -> Iterator[Callable[[list[bytes]], Values]]:
        """Give a function that returns the values of stored keys of a partition of a checkpoint."""
        own = self.find_meta(split)
        if own is None or not isinstance(self.source, StoresSource):
            raise InternalError(f"Partition {split} of {self.state.whose} has no store to look up rows in.")
        with self.source.look_up(self.state, split, own) as get_many:
            yield get_many

    def are_split_as(self, other: Splits) -> bool:
        """Return whether both have each key in the split of the same number."""
        are_alike = type(self.source) is type(other.source) and self.count() == other.count()
        groups, others = (read_max_parallelism(each.state.descriptor, each.state.whose) for each in (self, other))
        return are_alike and groups == others

    def are_proven_equal(self, other: Splits) -> bool:
        """Return whether both are of savepoints that have recorded equal digests of all rows, of equal types."""
        mine, theirs = self.source.find_digest(self.state), other.source.find_digest(other.state)
        return mine is not None and mine == theirs and self.state.descriptor == other.state.descriptor

    def is_proven_equal(self, split: int, other: Splits) -> bool:
        """Return whether a split of both is a file of the same bytes. They must be split alike."""
        mine = self.source.find_checksum(self.state, split)
        if mine is None or mine != other.source.find_checksum(other.state, split):
            return False
        own, known = self.find_meta(split), other.find_meta(split)
        return (
            own is not None and known is not None and (own.number, own.descriptor) == (known.number, known.descriptor)
        )
