"""Faults that were mended once, to be put back one at a time: the simulation must find each of them.

The first seed, counted from 0, that finds each:

- In worlds: a write whose answer was lost is another's: 49; a snapshot replaces what is below it unread: 0; rot is
  published by a snapshot: 82; an entry goes from which the successor went on: 412; a pack goes when one of its stores
  needs it no longer: 1; a batch is committed before its packs are durable: 76.
- In the scene ``snapshots beside clean ups``: deletions without a notice: 4; table files go at the first look: 1; no
  second look for table files: 0; a snapshot replaces what is below it with files missing: 0; files that may go are
  inherited: 4.
- In the scene ``attempts of one store``: stores without their lock: 1.

Not found so far: a run that is over commits, in 118 worlds; ages by the
clock of the host, in 328; the notice of a failed clean-up is withdrawn, in 400 scenes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

from pyspark_ckpt.state_store.attempts import runs
from pyspark_ckpt.state_store.blobs import Blob
from pyspark_ckpt.state_store.blobs.base import place_clock
from pyspark_ckpt.state_store.blobs.s3 import errors, requests
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.format import notices
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.retention import confirmation, packs, retention
from pyspark_ckpt.state_store.snapshots import writer
from tests.simulation import driver, standard_library
from tests.simulation.plan import Plan
from tests.simulation.replacing import replaced
from tests.simulation.running import Outcome, simulate


def _skip(*_: object, **__: object) -> None:
    """Do nothing."""


def _tell_own_time() -> float:
    return float(vars(place_clock)["time"].time())


def _write_blindly(self: Any, name: str, _writer: str, write: Callable[[], object], *, work_s: float = 0.0) -> bool:  # noqa: ANN401
    """Take an object that is there for another's, although an earlier try may have made it."""
    try:
        self.ask(write, work_s=work_s)
    except ClientError as problem:
        if errors.find_code(problem) in errors.EXISTS:
            return False
        errors.fail("write", self.describe(name), problem, "not_applied")
    except errors.CLIENT_ERRORS as problem:
        errors.fail("write", self.describe(name), problem, "unknown")
    return True


def _has_later_entries(self: driver.Log, number: int) -> bool:
    return any(each > number for each in self.numbers())


def _is_any(self: Any, blob: Blob, index: Sequence[Any], replaced_by: Mapping[Identity, int]) -> bool:  # noqa: ANN401
    return any(replaced_by.get(commit.identity, 0) >= self._version(blob) for commit in index)


@contextmanager
def _without_locks_of_stores() -> Iterator[None]:
    with (
        replaced(standard_library.SimulatedRLock, "acquire", lambda *_: True),
        replaced(standard_library.SimulatedRLock, "release", _skip),
    ):
        yield


@contextmanager
def _withdraw_always() -> Iterator[None]:
    delete = retention.Retention._delete

    def withdraw(self: Any, *given: Any) -> set[str]:  # noqa: ANN401
        try:
            return delete(self, *given)
        except CkptError:
            if self._own_notice is not None:
                self._notices.withdraw(self._own_notice[0])
            raise

    with replaced(retention.Retention, "_delete", withdraw):
        yield


MUTANTS: Mapping[str, Callable[[], Any]] = {
    "deletions without a notice": lambda: replaced(notices.Notices, "read", lambda _self: {}),
    "table files go at the first look": lambda: replaced(retention.Retention, "_is_due", lambda *_: True),
    "a snapshot replaces what is below it unread": lambda: replaced(
        confirmation.Confirmations, "confirm_all", lambda *_: True
    ),
    "a snapshot replaces what is below it with files missing": lambda: replaced(
        retention.Retention, "_is_base", lambda *_: True
    ),
    "no second look for table files": lambda: replaced(writer.SnapshotWriter, "_lacks", lambda *_: ([], [])),
    "a run that is over commits": lambda: replaced(runs.Epochs, "require_newest", _skip),
    "an entry goes from which the successor went on": lambda: replaced(driver.Log, "_is_old", _has_later_entries),
    "a write whose answer was lost is another's": lambda: replaced(requests.S3Requests, "write_once", _write_blindly),
    "ages by the clock of the host": lambda: replaced(place_clock.PlaceTimes, "make_clock", lambda *_: _tell_own_time),
    "rot is published by a snapshot": lambda: replaced(writer, "check_chunks", lambda path: [path.read_bytes()]),
    "stores without their lock": _without_locks_of_stores,
    "files that may go are inherited": lambda: replaced(writer.SnapshotWriter, "_list_doomed", lambda _: set()),
    "the notice of a failed clean-up is withdrawn": _withdraw_always,
    "a batch is committed before its packs are durable": lambda: replaced(driver, "_await_pack", _skip),
    "a pack goes when one of its stores needs it no longer": lambda: replaced(packs.PackRetention, "_is_free", _is_any),
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Put a fault back for a while; the empty name is none."""
    if not name:
        yield
        return
    with MUTANTS[name]():
        yield


def simulate_seed(seed: int, mutant: str = "", *, in_steps: bool = False) -> Outcome:
    """Run the world of a seed, perhaps with a fault put back. ``in_steps``: see ``steps``."""
    logging.disable()
    with put_back(mutant):
        return simulate(Plan.of(seed, in_steps=in_steps))
