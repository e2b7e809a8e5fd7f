"""A Python worker's access to the store of its task: it reads the base version and stages writes.

The state server leaves a ticket that the worker finds by the number of the task attempt. The worker reads the files
that the server writes, and stages rows as sorted table files. The task's commit applies these together with those of
the shim, or not at all.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from operator import le
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.rows.base import Moment, Position, merge_rows
from pyspark_ckpt.operators.rows.event_time import EventTime
from pyspark_ckpt.operators.session.spilled_rows import SpilledRows
from pyspark_ckpt.operators.session.views import find_view, get_tuning, noting_damage
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.database import Cursor, write_table_file
from pyspark_ckpt.state_store.database.column_names import MIN_KEYS
from pyspark_ckpt.state_store.display import write_command
from pyspark_ckpt.state_store.errors import (
    FormatError,
    InvalidInputError,
    LifecycleError,
    NotFoundError,
)
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, MARKER_KEY, STATE_BYTES, Marker
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta, is_keyed
from pyspark_ckpt.state_store.sst.lookup import look_up
from pyspark_ckpt.state_store.transactions.parts import Part, PartState, declare, write_part
from pyspark_ckpt.state_store.transactions.staged_tables import Seal, seal_file
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, read_ticket, ticket_paths

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WorkerSession:
    """The states of one operator at the base version of this task, and what is staged on top of it."""

    def __init__(
        self,
        ticket: Ticket,
        states: Sequence[tuple[str, Descriptor]],
        keys: KeyCodec,
        now_ms: Mapping[Clock, int],
        fired_ms: Mapping[Clock, int] = MappingProxyType({}),
        passed_ms: int | None = None,
    ) -> None:
        """Find or create ``states``.

        ``fired_ms``: for each clock, the instant up to which all timers have fired. ``passed_ms``: see ``EventTime``.

        Raises InvalidInputError, LifecycleError (when the base version has gone: a retry finds it).
        """
        self._ticket = ticket
        _, declared = declare(ticket.meta, states)
        self.numbers: Mapping[str, int] = {state.name: state.number for state in declared}
        self.descriptors: Mapping[int, Descriptor] = {state.number: state.descriptor for state in declared}
        self._declared: tuple[PartState, ...] = declared
        view = find_view(ticket)
        self._reader = None if view is None else view.reader
        self._columns = None if view is None else view.columns
        self._cursors: dict[bytes, list[Cursor]] = {}
        self.partition = ticket.partition
        self.version = ticket.version + 1
        """The version that the task's commit makes."""
        self.new_life = self.version
        """The life of lists that begin in this session. Lists of other sessions have other lives."""
        self.position = Position()
        self.position.time = EventTime(now_ms["event"], passed_ms)
        self.keys = keys
        self.now_ms = dict(now_ms)
        self._followers: list[tuple[Clock, Callable[[int], None]]] = []
        self.fired_ms = fired_ms
        self.name = f"worker-{uuid.uuid4().hex[:12]}"
        self.counts: Counter[str] = Counter()
        self._files: list[str] = []
        self._seals: dict[str, Seal] = {}
        self._written = 0
        self._held_bytes = 0
        self._most_held_bytes = sys.maxsize
        self._when_full: Callable[[], None] = _do_nothing
        self._spilled: SpilledRows | None = None
        self.moment = Moment(0, 0)
        self._is_over = False

    def follow(self, clock: Clock, move: Callable[[int], None]) -> None:
        """Call ``move`` with the time whenever a clock moves on within the batch."""
        self._followers.append((clock, move))

    def move_clock(self, clock: Clock, now_ms: int) -> None:
        """Go on to a later time by a clock."""
        self.now_ms[clock] = now_ms
        for followed, move in self._followers:
            if followed == clock:
                move(now_ms)

    @property
    def left_alone(self) -> Iterator[StateMeta]:
        """States of keyed operators in the base version that the program does not declare."""
        return (each for each in self._ticket.meta.states if is_keyed(each) and each.name not in self.numbers)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of the base version and of spilled rows, None where absent. Sorted keys are fastest."""
        values = self._read_base(keys)
        return values if self._spilled is None else self._spilled.over(keys, values)

    def get_cells(self, keys: Packed) -> Cells:
        """``get_many`` for keys in ascending order."""
        if self._spilled is not None:
            return Cells.of(self.get_many(keys.strings()))
        if self._reader is None or not len(keys):
            return Cells.absent(len(keys))
        with noting_damage(self._ticket):
            return look_up(self._reader, keys, self._columns)

    def scan(self, prefix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows whose keys are ``prefix`` and an entry from ``begin`` up to ``end`` (exclusive).

        They are those of the base version and spilled ones.
        """
        rows = self._base_rows(prefix, begin, end)
        return rows if self._spilled is None else merge_rows(rows, self._spilled.scan(prefix, begin, end))

    def _read_base(self, keys: list[bytes]) -> list[bytes | None]:
        if self._reader is None or not keys:
            return [None] * len(keys)
        with noting_damage(self._ticket):
            if len(keys) < MIN_KEYS or not all(map(le, keys, islice(keys, 1, None))):
                return self._reader.get_many(keys)
            return look_up(self._reader, Packed.of(keys), self._columns).strings()

    def _base_rows(self, prefix: bytes, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._reader is None:
            return
        if self._is_over:
            raise LifecycleError(
                "An iterator over the elements or entries of a state is used after its batch has ended.",
                hint="Read it in the call that made it, or make a list of it there.",
            )
        idle = self._cursors.setdefault(prefix[:STATE_BYTES], [])
        first, size = prefix + begin, len(prefix)
        with noting_damage(self._ticket):
            cursor = idle.pop() if idle else self._reader.cursor()
            # Keys are processed in stored order: the rows of one are followed by those of the next.
            if cursor.key is None or not cursor.left < first <= cursor.key:
                cursor.seek(first)
            try:
                while cursor.key is not None and cursor.key.startswith(prefix):
                    entry = cursor.key[size:]
                    if end is not None and entry >= end:
                        break
                    yield entry, cursor.value()
                    cursor.next()
            finally:
                idle.append(cursor)

    def portions(self, prefix: bytes, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield rows of the base version under ``prefix``, up to entry ``end``, in portions that are not empty."""
        if self._reader is not None:
            with noting_damage(self._ticket):
                for rows in self._reader.portions(prefix, prefix + end):
                    yield [(key[len(prefix) :], value) for key, value in rows]

    def ends_of_keys(self, rows: Packed) -> NDArray[np.int64]:
        """Return where the suffix ends in each row, a suffix and an entry. Raises FormatError for any other row."""
        if self.keys.width is None or (rows.size < HASH_BYTES + self.keys.width).any():
            return np.array([self.keys.read(row, HASH_BYTES)[1] for row in rows.strings()], np.int64)
        return np.full(len(rows), HASH_BYTES + self.keys.width)

    def stage(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write sorted rows (None deletes) as one more file. If files share a key, the last file wins."""
        remaining = iter(rows)
        first = next(remaining, None)
        if first is not None:
            marker = [] if self._files else [(MARKER_KEY, Marker(self.version, self._ticket.new_id).encode())]
            path = self._new_file()
            count = write_table_file(path, chain(marker, [first], remaining), get_tuning(self._ticket.compression))
            self._written += count - len(marker)
            self._seals[path.name] = seal_file(path)

    def spill_beyond(self, most_held_bytes: int, spill: Callable[[], None]) -> None:
        """Call ``spill`` when more than ``most_held_bytes`` of written rows are held in memory."""
        self._most_held_bytes, self._when_full = most_held_bytes, spill

    def hold(self, size_bytes: int) -> None:
        """Note that ``size_bytes`` more of written rows are held in memory."""
        self._held_bytes += size_bytes
        if self._held_bytes > self._most_held_bytes:
            self._when_full()

    def let_go(self) -> None:
        """Note that no written rows are held in memory any more."""
        self._held_bytes = 0

    def end_turn(self) -> None:
        """Note that the turn of some keys is over, and that none of their written rows are held in memory any more."""
        self.let_go()
        self.moment = self.moment._replace(turns=self.moment.turns + 1)

    def spill(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """``stage`` rows that this session still has to find, in place of those of the base version."""
        self.moment = self.moment._replace(spills=self.moment.spills + 1)
        self.stage(self._make_spilled_rows().keep(rows))

    def _make_spilled_rows(self) -> SpilledRows:
        if self._spilled is None:
            folder = Path(self._ticket.staging) / f"{self.name}-spilled"
            self._spilled = SpilledRows(folder, get_tuning(self._ticket.compression))
        return self._spilled

    def close(self) -> None:
        """Discard what was spilled: the batch is over."""
        self._is_over = True
        self._forget_spilled()

    def _forget_spilled(self) -> None:
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    def _new_file(self) -> Path:
        """Return the path of a new file, which the commit applies."""
        name = f"{self.name}-{len(self._files)}.sst"
        self._files.append(name)
        return Path(self._ticket.staging) / name

    def find_base(self, number: int) -> StateMeta | None:
        """Return the state with this number in the base version, or None."""
        return next((each for each in self._ticket.meta.states if each.number == number), None)

    def publish(self, changes: Mapping[int, int], digests: Mapping[int, str] = MappingProxyType({})) -> None:
        """Hand what was staged to the task's commit, with the changes of row counts by state number.

        ``digests``: of the rows that broadcast states have now, by state number.
        """
        part = Part(
            self._declared,
            tuple(self._files),
            dict(changes),
            self._written,
            dict(self.counts),
            self._ticket.new_id,
            seals=self._seals,
            digests=dict(digests),
        )
        write_part(Path(self._ticket.staging), self.name, part)


def _do_nothing() -> None:
    """Stand for ``spill`` while there is no limit."""


def find_ticket(attempt: int, local_dir: str, operator: int | None = None) -> Ticket:
    """Return the ticket of a task attempt in this worker's executor: that of the partition it is processing.

    ``operator``: its number in the query. None if the plan does not tell: no other may run in the task then.

    Raises NotFoundError (the operator does not run on this state store), InvalidInputError (there are several tickets).
    """
    blocks = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    roots = [local_dir] if local_dir else blocks
    task = WorkerTask(attempt, Path(blocks[0]).name)
    paths = [path for root in roots if root for path in ticket_paths(Path(root), task, operator)]
    of_operator = "" if operator is None else f" for operator {operator}"
    if len(paths) > 1:
        raise InvalidInputError(
            f"Task attempt {attempt} has {len(paths)} tickets of the ckpt state store{of_operator} below {roots}: it "
            "is not certain for which partition the function is called.",
            hint=_SEVERAL,
        )
    if not paths:
        raise NotFoundError(
            f"Task attempt {attempt} has 0 tickets of the ckpt state store{of_operator} below {roots}.",
            hint="Call pyspark_ckpt.configure(builder) first; a checkpoint stays with the provider that made it.",
        )
    return read_ticket(paths[0])


_SEVERAL = (
    "Spark runs several stateful operators in this task. Pass the result of with_states to applyInPandasWithState "
    "unchanged, so that it is known by its uid; or call repartition on the rows of one of the operators."
)


@contextmanager
def naming(ticket: Ticket, uid: str) -> Iterator[None]:
    """Name the operator, the partition and the version in a FormatError that is raised within."""
    try:
        yield
    except FormatError as problem:
        verify = write_command("checkpoint", "verify", ticket.checkpoint, **ticket.place_options)
        raise FormatError(
            f"Keyed operator {uid!r}, partition {ticket.partition}, version {ticket.version}: {problem.message}",
            hint=problem.hint or f"Check it with {verify}, or go back to an earlier version.",
        ) from problem
