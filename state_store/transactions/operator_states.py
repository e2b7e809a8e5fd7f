"""The keyed states of an operator in all partitions, at the version on which a run of the query begins.

A program is checked against all of them before it commits anything. Spark calls the program only for partitions that
have rows. Without this check a changed program could commit in these partitions although it is incompatible with
others; then neither the old nor the new program could continue in all of them. Declarations are not recorded: the
stores at the base version are the source of truth, even after a failed batch, a restore or a rescaling.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeAlias

import msgspec

from pyspark_ckpt.state_store.attempts.agreement import require_equal_copies, select_copies
from pyspark_ckpt.state_store.attempts.commit_log import read_ids
from pyspark_ckpt.state_store.attempts.winners import Evidence, resolve
from pyspark_ckpt.state_store.blobs import BlobPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.errors import FormatError, InternalError, NotFoundError
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, split_id
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.restore.commit_meta import read_meta_at

RUNS_KEPT = 64
COPIES_KEPT = 4096

States: TypeAlias = tuple[StateMeta, ...]


class KnownStates:
    """The states of one query that a process has read, by run, operator and store name. All its stores share them."""

    def __init__(self) -> None:
        """Start empty."""
        self.lock = threading.Lock()
        self.of: OrderedDict[tuple[str, int, str], tuple[States, ...]] = OrderedDict()
        self.equal: OrderedDict[tuple[str, Identity], tuple[str, ...]] = OrderedDict()
        """The digests of broadcast states that were found equal to those of the next partition."""


class OperatorStates:
    """The keyed states of the operators of one query, read once per run. Safe to call from many threads."""

    def __init__(
        self, checkpoint: BlobPlace, places: Callable[[str], BlobPlace], pool: Executor, known: KnownStates
    ) -> None:
        """Find stores with ``places`` and read several at once in ``pool``. Other stores share ``known``."""
        self._checkpoint = checkpoint
        self._places = places
        self._pool = pool
        self._known = known

    def of(
        self, run_id: str, identity: Identity, own: StoreMeta, place: BlobPlace, traffic: Traffic
    ) -> tuple[States, ...]:
        """Return the keyed states of each partition that has any, without duplicates, as the run's first call saw them.

        ``own`` is the metadata of the store ``identity``, in ``place``, at the version on which the run begins. The
        first call of a run makes two or three requests for each other partition, which ``traffic`` counts. Later calls
        make none. Raises ConflictError, FormatError (also for a partition that lacks a commit named by the commit log
        or a winner), StorageError.
        """
        key = (run_id, identity.operator, identity.name)
        known = self._known.of
        with self._known.lock:
            if key not in known:
                known[key] = tuple(self._read(identity, own, place, traffic))
                while len(known) > RUNS_KEPT:
                    known.popitem(last=False)
            return known[key]

    def require_agreement(
        self, run_id: str, identity: Identity, own: StoreMeta, place: BlobPlace, traffic: Traffic
    ) -> None:
        """Require that the next partition has the same broadcast states as ``own``, if these have changed in the run.

        So all partitions agree, whatever processes made their commits. After a batch that has changed a broadcast
        state, a call makes two or three requests; other calls make none. Raises InvalidInputError (a program has made
        the copies differ), and as ``of``.
        """
        copies, partitions = select_copies(own), own.num_partitions or 1
        if not copies or partitions == 1:
            return
        digests = tuple(str(state.digest) for state in copies)
        equal = self._known.equal
        with self._known.lock:
            if equal.get((run_id, identity)) == digests:
                return
        other = replace(identity, partition=(identity.partition + 1) % partitions)
        read = self._reader(identity, own, place, traffic)
        theirs = read(other.partition)
        if theirs is not None:
            require_equal_copies((identity, copies), (other, select_copies(theirs)))
        with self._known.lock:
            equal[run_id, identity] = digests
            while len(equal) > COPIES_KEPT:
                equal.popitem(last=False)

    def _read(self, identity: Identity, own: StoreMeta, place: BlobPlace, traffic: Traffic) -> Sequence[States]:
        read = self._reader(identity, own, place, traffic)
        others = [number for number in range(own.num_partitions or 0) if number != identity.partition]
        return list(_different([_select_keyed(own), *map(_select_keyed, self._pool.map(read, others))]))

    def _reader(
        self, identity: Identity, own: StoreMeta, place: BlobPlace, traffic: Traffic
    ) -> Callable[[int], StoreMeta | None]:
        """Return a reader of another partition's metadata at the version of ``own``."""
        root = place.url.removesuffix(store_folder(identity))
        if root == place.url:
            raise InternalError(
                f"{identity}: its state folder {place.url} does not end with its operator and partition."
            )
        checkpoint = self._checkpoint
        if root == f"{checkpoint.url}/":  # else the state is in another place, and only requests to that are counted
            checkpoint = MeteredPlace(checkpoint, traffic)
        named = read_ids(checkpoint, own.version).get(str(identity.operator), [])

        def read(partition: int) -> StoreMeta | None:
            other = replace(identity, partition=partition)
            there = StorePlace(
                self._places(f"{root}{store_folder(other)}"), self._places(f"{root}{PACKS_FOLDER}"), traffic
            )
            ids = named[partition] if partition < len(named) else []
            return _read_meta(there, checkpoint, other, own.version, ids)

        return read


def _read_meta(
    place: StorePlace, checkpoint: BlobPlace, identity: Identity, version: int, ids: Sequence[str]
) -> StoreMeta | None:
    """Return the metadata of a store at a version. None if it is gone, which the partition's own task reports.

    Raises FormatError if the commit that counts is missing: NotFoundError would mean the caller's own store.
    """
    try:
        if len(ids) == 1:  # the operator has one store, so it is this one's
            packed = place.read_slot_meta(place.note(version, ids[0]))
            if packed is not None:
                return packed.store
        lineage = Lineage.of(place.list(prefix=f"{version:020d}-"))
        if not lineage.list_commits(version) and all(split_id(each)[1] is None for each in ids):
            return None
        commit = resolve(identity, version, Evidence(place, checkpoint, ids, lineage))
        return read_meta_at(place, commit, lineage)
    except NotFoundError as problem:
        raise FormatError(
            f"The states of another partition, in {place.url}, cannot be read: {problem}", hint=problem.hint
        ) from problem


def _select_keyed(meta: StoreMeta | None) -> States:
    return () if meta is None else tuple(filter(is_keyed, meta.states))


def _different(partitions: Sequence[States]) -> Iterator[States]:
    """Yield the different non-empty states. Two row counts differ only if one of them is zero."""
    seen = set()
    for states in partitions:
        said = msgspec.json.encode([(state.name, state.rows > 0, state.descriptor) for state in states])
        if states and said not in seen:
            seen.add(said)
            yield states
