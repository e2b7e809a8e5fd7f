"""Broadcast states have the same rows in all partitions: commits are compared, and a program that breaks it is named.

Within a process, each commit is compared with the first one of the same batch, before it is written. Between processes,
the next batch compares each partition with the next one, if its copy has changed: see ``OperatorStates``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.format.partition_states import Scope, encode_sum, find_scope, read_digest
from pyspark_ckpt.state_store.identity import Identity

BATCHES_KEPT = 64


class Agreement:
    """The broadcast states in the first commit of each recent batch. Safe to call from many threads."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._first: OrderedDict[tuple[str, int, str, int], tuple[Identity, tuple[StateMeta, ...]]] = OrderedDict()

    def require(self, identity: Identity, run_id: str, meta: StoreMeta) -> None:
        """Raise InvalidInputError if another partition has other rows in a broadcast state after the same batch."""
        copies = select_copies(meta)
        if not copies:
            return
        key = run_id, identity.operator, identity.name, meta.version
        with self._lock:
            first, theirs = self._first.setdefault(key, (identity, copies))
            if first == identity:  # it is the first one, or another attempt of it
                self._first[key] = identity, copies
            while len(self._first) > BATCHES_KEPT:
                self._first.popitem(last=False)
        if first == identity:
            return
        require_equal_copies((identity, copies), (first, theirs))


def select_copies(meta: StoreMeta) -> tuple[StateMeta, ...]:
    """Return the broadcast states of a partition. Raises FormatError."""
    return tuple(each for each in meta.states if find_scope(each) is Scope.BROADCAST)


Copies: TypeAlias = "tuple[Identity, Iterable[StateMeta]]"
"""A partition, and its broadcast states."""


def require_equal_copies(one: Copies, other: Copies) -> None:
    """Raise InvalidInputError unless the broadcast states of two partitions have the same rows."""
    for difference in find_differences(one, other):
        raise InvalidInputError(
            f"{difference} The program has made them differ.",
            hint="The output of process_broadcast must follow from its rows and broadcast states alone: not from the "
            "partition, a clock, random numbers, other states or the order of a set.",
        )


def find_differences(one: Copies, other: Copies) -> Iterator[str]:
    """Yield a message for each broadcast state whose rows differ between the partitions."""
    (here, own), (there, theirs) = one, other
    mine, of_other = ({state.name: (state.rows, read_digest(state)) for state in each} for each in (own, theirs))
    none = 0, encode_sum(0)
    for name in sorted({*mine, *of_other}):
        first, second = mine.get(name, none), of_other.get(name, none)
        if first != second:
            copies = ", ".join(
                f"partition {partition} has {count_text(rows, 'entry', 'entries')} with the digest {digest}"
                for partition, (rows, digest) in ((here.partition, first), (there.partition, second))
            )
            yield f"The copies of broadcast state {name!r} differ: {copies}."
