"""Programs one after the other on one store, each checked, described and bound as in a query, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from pyspark_ckpt.operators.bound.declared_states import DeclaredStates, with_types
from pyspark_ckpt.operators.declarations.processors import Context, KeyedProcessor, VectorProcessor
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.operators.task.staging import finish, spill, sweep
from pyspark_ckpt.state_store.format.keys import state_head
from pyspark_ckpt.state_store.transactions.ticket import Ticket, read_ticket
from tests.labs.lab import Lab
from tests.labs.session_lab import KEYS, suffix_of


class OneKey(KeyedProcessor):
    """Holds the bound states of a program for single keys."""

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> Iterable[Any]:  # noqa: ANN401
        """Is not called."""
        return ()


class ManyKeys(VectorProcessor):
    """Holds the bound states of a program for many keys."""

    def process_batch(self, _ctx: Any, _batch: Any) -> None:  # noqa: ANN401
        """Is not called."""


class Bound:
    """The states of a program in one batch, by name."""

    def __init__(self, session: WorkerSession, holder: object, states: Iterable[Declared]) -> None:
        self.session = session
        self._holder = holder
        self._names = {state.name for state in states}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        assert name in self._names
        return getattr(self._holder, name)

    def at(self, key: str) -> Bound:
        """Go to a key."""
        self.session.position.suffix = suffix_of(key)
        return self


class ProgramLab:
    """A store with one partition, and what the programs of the operator "it" do to it."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.version = 0
        self.id: str | None = None
        self._attempts = count(1)
        self.most_held_bytes: int | None = None

    def run(
        self,
        program: Iterable[Declared],
        work: Callable[[Bound], Any] = lambda _bound: None,
        now_ms: int | Mapping[Clock, int] = 0,
        *,
        many_keys: bool = False,
        commits: bool = True,
        rows: int = 0,
    ) -> Any:  # noqa: ANN401
        """One batch of a program, which is committed if the program is not refused; returns what ``work`` has."""
        clocks: Mapping[Clock, int] = {"processing": now_ms, "event": now_ms} if isinstance(now_ms, int) else now_ms
        declared = list(program)
        types = with_types({state.name: state for state in declared}, "it")
        states = DeclaredStates("it", types)
        number, ticket = self._begin()
        try:
            described = states.descriptors(ticket, {"user": "string"}, {"max_parallelism": 32768})
            session = WorkerSession(ticket, described, KEYS, clocks)
            holder, bound = states.bind(ManyKeys() if many_keys else OneKey(), session)
            if self.most_held_bytes is not None:
                session.spill_beyond(self.most_held_bytes, lambda: spill(session, bound))
            sweep(session, bound, rows)
            found = work(Bound(session, holder, declared))
            if commits:
                finish(session, bound)
            session.close()
        except BaseException:
            self.lab.server.call("abort", txn=number)
            raise
        if not commits:
            self.lab.server.call("abort", txn=number)
            return found
        made = self.lab.server.call("commit", txn=number, files=[], rows={}, num_partitions=1)
        self.version, self.id = made["version"], made["id"]
        self.states = {state["name"]: state for state in made["states"]}
        self.metrics = made["metrics"]
        return found

    def look(
        self, program: Iterable[Declared], work: Callable[[Bound], Any], now_ms: int | Mapping[Clock, int] = 0
    ) -> Any:  # noqa: ANN401
        """What ``work`` has; nothing is committed."""
        return self.run(program, work, now_ms, commits=False)

    def stored(self, name: str) -> list[tuple[bytes, bytes]]:
        """The rows of a state or of an index, as they are stored."""
        number, ticket = self._begin()
        session = WorkerSession(ticket, [], KEYS, {"processing": 0, "event": 0})
        (state,) = [state.number for state in ticket.meta.states if state.name == f"it/{name}"]
        rows = list(session.scan(state_head(state)))
        self.lab.server.call("abort", txn=number)
        return rows

    def _begin(self) -> tuple[int, Ticket]:
        """A transaction of a run of its own, and what the worker is told of it."""
        attempt = next(self._attempts)
        handle = self.lab.open(f"run-{attempt}")
        answer = self.lab.server.call("begin", handle=handle, version=self.version, id=self.id, attempt=attempt)
        (path,) = (self.lab.local_dir / "tickets").glob(f"{attempt}-*.json")
        return answer["txn"], read_ticket(path)

    def close(self) -> None:
        """End the server."""
        self.lab.server.stores.shut_down()
