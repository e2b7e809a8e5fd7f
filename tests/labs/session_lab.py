"""Worker sessions against a real store: what a partition's task does, without Spark around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import UNSET

from pyspark_ckpt.operators.bound.base import Binding, Kept
from pyspark_ckpt.operators.bound.binding import bind
from pyspark_ckpt.operators.declarations.states import Declared, ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.encoding.distinct_keys import Keys
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.suffixes import Suffixes
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.operators.task.staging import finish, flush, spill, sweep
from pyspark_ckpt.state_store.format.keys import state_head
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.transactions.ticket import read_ticket
from tests.labs.lab import Lab

HOUR = 3_600_000
KEYS = KeyCodec([pa.string()])
Kinds = Mapping[str, pa.DataType]
LONG, TEXT = pa.int64(), pa.string()
USERS = [f"user {n}" for n in range(6)]
SPILLED_BEYOND = (None, 0, 1000)
"""How many bytes may be held of what was written."""

STATES = {
    "value": (ValueState("value", "bigint"), {"value": LONG}),
    "text": (ValueState("text", "string", default="none"), {"value": TEXT}),
    "list": (ListState("list", "bigint"), {"element": LONG}),
    "map": (MapState("map", "string", "bigint"), {"key": TEXT, "value": LONG}),
}


def keys_of(users: list[str]) -> Keys:
    ordered = sorted(users, key=suffix_of)
    return Keys(pa.table({"user": ordered}), Suffixes([suffix_of(user) for user in ordered]))


def suffix_of(key: str) -> bytes:
    """Hash and bytes of a key; the hash is made up, and few keys share one."""
    return (sum(key.encode()) % 5 * 0x33333333).to_bytes(4, "big") + KEYS.encode((key,))


class Batch:
    """One transaction of the store with one session of a worker."""

    def __init__(
        self, lab: Lab, number: int, session: WorkerSession, bound: Sequence[Kept], most_held_bytes: int | None = None
    ) -> None:
        self.lab = lab
        self.number = number
        self.session = session
        self.bound = bound
        if most_held_bytes is not None:
            session.spill_beyond(most_held_bytes, partial(spill, session, bound))
        sweep(session, bound, 0)

    def at(self, key: str, upcoming: Sequence[str] = ()) -> None:
        """Go to a key; ``upcoming`` are read ahead."""
        self.session.position.suffix = suffix_of(key)
        self.session.position.upcoming = sorted(map(suffix_of, upcoming))

    def flush(self, end: bytes | None = None) -> None:
        """Stage what was written for the keys below ``end``."""
        flush(self.session, self.bound, end)

    def stage(self) -> None:
        """Stage what was written."""
        finish(self.session, self.bound)
        self.session.close()

    def commit(self) -> dict[str, Any]:
        """Have the store make the next version of what was staged."""
        answer: dict[str, Any] = self.lab.server.call("commit", txn=self.number, files=[], rows={}, num_partitions=1)
        return answer

    def abort(self) -> None:
        """Drop the transaction."""
        self.lab.server.call("abort", txn=self.number)


def take_turns(turns: Any, calls: Sequence[tuple[Any, ...]]) -> None:  # noqa: ANN401
    """Call methods of ``turns``. Keys whose turn is over are not written again, so a flush is the last call."""
    for name, *given_values in calls:
        getattr(turns, name)(*given_values)
        if name == "flush":
            return


class SessionLab:
    """A store, and the states of one operator."""

    def __init__(self, folder: Path, states: Mapping[str, tuple[Declared, Kinds]]) -> None:
        self.lab = Lab(folder)
        self.handle = self.lab.open()
        self.version = 0
        self.id: str | None = None
        self.states = states
        self._attempts = count(1)
        self.most_held_bytes: int | None = None
        """Beyond so many, what was written is spilled."""

    def begin(
        self, now_ms: int | Mapping[Clock, int] = 0, fired_ms: Mapping[Clock, int] | None = None
    ) -> tuple[Batch, dict[str, Any]]:
        """Begin a batch on the newest committed version; the bound states by name."""
        clocks: Mapping[Clock, int] = {"processing": now_ms, "event": now_ms} if isinstance(now_ms, int) else now_ms
        attempt = next(self._attempts)
        answer = self.lab.server.call("begin", handle=self.handle, version=self.version, id=self.id, attempt=attempt)
        (path,) = (self.lab.local_dir / "tickets").glob(f"{attempt}-*.json")
        declared = []
        for name, (state, _) in self.states.items():
            ttl = UNSET if state.ttl is None else state.ttl.describe()
            declared.append((name, Descriptor(ordered=isinstance(state, Timers), ttl=ttl)))
            if state.ttl is not None:
                declared.append((index_name(name), Descriptor(ordered=True, internal=True)))
        session = WorkerSession(read_ticket(path), declared, KEYS, clocks, fired_ms or {})
        bound = {
            name: bind(Binding(state, kinds, session.numbers[name], session.numbers.get(index_name(name)), session))
            for name, (state, kinds) in self.states.items()
        }
        return Batch(self.lab, answer["txn"], session, list(bound.values()), self.most_held_bytes), bound

    def run(self, work: Callable[..., None], now_ms: int | Mapping[Clock, int] = 0) -> dict[str, Any]:
        """One committed batch: ``work(batch, states by name)``."""
        batch, states = self.begin(now_ms)
        work(batch, states)
        batch.stage()
        return self.commit(batch)

    def commit(self, batch: Batch) -> dict[str, Any]:
        """Make the next version of what the batch has staged."""
        answer = batch.commit()
        self.version, self.id = answer["version"], answer["id"]
        return answer

    def stored_rows(self, name: str) -> int:
        """Count the rows of a state, or of an index, by reading them."""
        batch, _ = self.begin()
        rows = list(batch.session.scan(state_head(batch.session.numbers[name])))
        batch.abort()
        return len(rows)

    def close(self) -> None:
        """End the server."""
        self.lab.server.stores.shut_down()
