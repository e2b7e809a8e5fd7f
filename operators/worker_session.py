"""One task's way to its store from the Python worker: the base version to read, and a place to stage writes.

The state server has put a ticket where the worker finds it by the task attempt's number. Rows are read from the same
files that the server writes, and staged as a sorted table file that the commit of the task applies with the
shim's own, or not at all.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyspark_ckpt.state_store.database import Reader, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import CkptError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.keys import EMPTY, Marker
from pyspark_ckpt.state_store.meta import Descriptor
from pyspark_ckpt.state_store.parts import DeclaredState, Part, declare, write_part
from pyspark_ckpt.state_store.ticket import Ticket, read_ticket

CACHE_BYTES = 16 << 20
READERS_KEPT = 4

_tuning: list[Tuning] = []
_readers: OrderedDict[str, Reader] = OrderedDict()


class WorkerSession:
    """The states of one operator at the base version of this task, and what is staged on top of it."""

    def __init__(self, ticket: Ticket, states: Sequence[tuple[str, Descriptor]], partitions: int) -> None:
        """Find or create ``states``. Raises InvalidInputError, LifecycleError (the base has gone: the task is retried)."""
        self._ticket = ticket
        _, declared = declare(ticket.meta, states)
        self.numbers: Mapping[str, int] = {state.name: state.number for state in declared}
        self._declared: tuple[DeclaredState, ...] = declared
        self._reader = _reader(ticket)
        self._name = f"worker-{uuid.uuid4().hex[:12]}"
        recorded = ticket.meta.num_partitions
        if recorded not in (None, partitions):
            raise LifecycleError(
                f"The query was planned for {partitions} partitions, and its checkpoint has {recorded}.",
                hint=f"Set spark.sql.shuffle.partitions to {recorded} before the query is built.",
            )

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of the base version, None where there is none; fastest for sorted keys."""
        return [None] * len(keys) if self._reader is None else self._reader.get_many(keys)

    def stage(self, rows: Iterable[tuple[bytes, bytes | None]], changes: Mapping[int, int]) -> None:
        """Stage sorted rows (None deletes) and the changes of row counts by state number: the last act of the session."""
        staging = Path(self._ticket.staging)
        name = f"{self._name}-0.sst"
        write_table_file(staging / name, rows, _shared_tuning())
        write_part(staging, self._name, Part(self._declared, (name,), dict(changes)))


def find_ticket(attempt: int, local_dir: str) -> Ticket:
    """The ticket of a task attempt. Raises NotFoundError if the operator does not run on this state store."""
    roots = [local_dir] if local_dir else os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    paths = [path for root in roots if root for path in Path(root).glob(f"ckpt-*/server/tickets/{attempt}-*.json")]
    if len(paths) != 1:
        raise NotFoundError(
            f"Task attempt {attempt} has {len(paths)} tickets of the ckpt state store below {roots}.",
            hint="Call pyspark_ckpt.configure(builder) before the session is made, and start the query with a new checkpoint.",
        )
    return read_ticket(paths[0])


def _shared_tuning() -> Tuning:
    if not _tuning:
        _tuning.append(Tuning(CACHE_BYTES))
    return _tuning[0]


def _reader(ticket: Ticket) -> Reader | None:
    """A view of exactly the ticket's base; None for version 0. Views of live databases are kept for the next task."""
    base = Marker(ticket.version, ticket.id)
    if base == EMPTY:
        return None
    reader = _readers.pop(ticket.db, None)
    if reader is None:
        reader = Reader(Path(ticket.db), _shared_tuning(), live=ticket.live)
    try:
        reader.catch_up()
        held = reader.marker()
    except CkptError:
        reader.close()
        raise
    if held != base:
        reader.close()
        raise LifecycleError(
            f"The database in {ticket.db} has moved on from {base} to {held}.",
            hint="The task is tried again on a copy of the version.",
            retryable=True,
        )
    _readers[ticket.db] = reader
    while len(_readers) > READERS_KEPT:
        _readers.popitem(last=False)[1].close()
    return reader
