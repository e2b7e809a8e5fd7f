"""What all partitions of an operator have of its keyed states, at the version on which a run of the query begins.

A program is checked against all of that before it commits anything. Spark calls it for partitions that have rows, and
no others: what these could go on with, others might not, and by then neither the old program nor the new one could go
on in all of them. Nothing is stored for it: what the stores say of themselves is the truth, also behind a batch
that failed, a restore or a rescaling.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeAlias

import msgspec

from pyspark_ckpt.state_store.attempts.commit_log import ids_of
from pyspark_ckpt.state_store.attempts.winners import resolve
from pyspark_ckpt.state_store.blobs import BlobPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.errors import InternalError
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.meta import State, StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.format.stored_meta import meta_at
from pyspark_ckpt.state_store.identity import Identity

RUNS_KEPT = 64

States: TypeAlias = tuple[State, ...]


class KnownStates:
    """What a process has read of the operators of one query, by run, operator and store; for all of its stores."""

    def __init__(self) -> None:
        """Know none."""
        self.lock = threading.Lock()
        self.of: OrderedDict[tuple[str, int, str], tuple[States, ...]] = OrderedDict()


class OperatorStates:
    """Those of the operators of one query, read once for each run. Safe to call from many threads."""

    def __init__(
        self, checkpoint: BlobPlace, places: Callable[[str], BlobPlace], pool: Executor, known: KnownStates
    ) -> None:
        """Find stores by ``places``; ``pool`` reads several at once; what is ``known`` others share."""
        self._checkpoint = checkpoint
        self._places = places
        self._pool = pool
        self._known = known

    def of(
        self, run_id: str, identity: Identity, own: StoreMeta, place: BlobPlace, traffic: Traffic
    ) -> tuple[States, ...]:
        """The keyed states of each partition that has some, those that are alike once; as a run's first call saw it.

        ``own``, in ``place``: what the store ``identity`` is at the version that the run begins on. The first call of a
        run makes two or three requests for each other partition, which ``traffic`` counts; later ones make none.
        Raises InvalidInputError, ConflictError, FormatError, StorageError.
        """
        key = (run_id, identity.operator, identity.name)
        known = self._known.of
        with self._known.lock:
            if key not in known:
                known[key] = tuple(self._read(identity, own, place, traffic))
                while len(known) > RUNS_KEPT:
                    known.popitem(last=False)
            return known[key]

    def _read(self, identity: Identity, own: StoreMeta, place: BlobPlace, traffic: Traffic) -> Sequence[States]:
        root = place.url.removesuffix(store_folder(identity))
        if root == place.url:
            raise InternalError(f"{identity}: its state is in {place.url}, and not in a folder of its number.")
        checkpoint = self._checkpoint
        if root == f"{checkpoint.url}/":  # else it is not the place of state, whose requests are counted
            checkpoint = MeteredPlace(checkpoint, traffic)
        named = ids_of(checkpoint, own.version).get(str(identity.operator), [])

        def read(partition: int) -> States:
            other = replace(identity, partition=partition)
            there = MeteredPlace(self._places(f"{root}{store_folder(other)}"), traffic)
            ids = named[partition] if partition < len(named) else []
            return _select_keyed(_meta_of(there, checkpoint, other, own.version, ids))

        others = [number for number in range(own.num_partitions or 0) if number != identity.partition]
        return list(_different([_select_keyed(own), *self._pool.map(read, others)]))


def _meta_of(
    place: BlobPlace, checkpoint: BlobPlace, identity: Identity, version: int, ids: Sequence[str]
) -> StoreMeta | None:
    """What a store is at a version; None if that has gone, which the partition's own task of the batch will say."""
    lineage = Lineage.of(place.list(prefix=f"{version:020d}-"))
    if not lineage.commits_of(version):
        return None
    who = str(identity)
    commit = resolve(place, checkpoint, version, identity.operator, identity.partition, who, ids, lineage)
    return meta_at(place, commit, lineage)


def _select_keyed(meta: StoreMeta | None) -> States:
    return () if meta is None else tuple(filter(is_keyed, meta.states))


def _different(partitions: Sequence[States]) -> Iterator[States]:
    """Those that say something, each once; of rows it counts whether there are any."""
    seen = set()
    for states in partitions:
        said = msgspec.json.encode([(state.name, state.rows > 0, state.descriptor) for state in states])
        if states and said not in seen:
            seen.add(said)
            yield states
