"""A transaction: one attempt to move a store from one version to the next.

::

    OPEN ──commit──▶ PREPARED ──durable──▶ COMMITTED
      │                 │
      └──────abort──────┴──failure──▶ ABORTED

OPEN accepts everything. PREPARED lasts from the call of ``commit`` to its outcome. COMMITTED and ABORTED are final. A
repeated ``commit`` of a committed transaction gets the same answer, because the first answer may have been lost.
"""

from __future__ import annotations

import enum
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.transactions.staged_tables import Seals

_STAGED_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}\.sst")


class Status(enum.Enum):
    """The state of a transaction in its life cycle."""

    OPEN = "OPEN"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


ALLOWED: Mapping[Status, frozenset[Status]] = {
    Status.OPEN: frozenset({Status.PREPARED, Status.ABORTED}),
    Status.PREPARED: frozenset({Status.COMMITTED, Status.ABORTED}),
    Status.COMMITTED: frozenset(),
    Status.ABORTED: frozenset(),
}
"""Allowed transitions: for each status, those that may follow it."""


@dataclass(frozen=True)
class Committed:
    """The answer to a commit: the version and id that are valid now, metrics, and the states.

    ``pack``: what must be durable before the batch is committed; empty if the commit itself is.
    """

    version: int
    id: str
    metrics: dict[str, int | float]
    states: tuple[StateMeta, ...]
    pack: str = ""


@dataclass
class Transaction:
    """A base that does not change, a staging folder, and a working copy of the store's metadata.

    A caller that changes it must hold the store's lock.
    """

    number: int
    base: Marker
    new_id: str
    copy: LocalCopy
    meta: StoreMeta
    staging: Path
    format: int
    run_id: str
    left: LocalCopy | None = None
    """The live copy on which the transaction began, if it has moved on since; ``copy`` is then a frozen one."""
    ticket: Path | None = None
    located: str = ""
    """The id of its base as Spark keeps it."""
    pack: str = ""
    """The pack that its commit is in, if that is durable later."""
    status: Status = Status.OPEN
    result: Committed | None = None
    metrics: dict[str, int | float] = field(default_factory=dict)

    @property
    def target(self) -> Marker:
        """The commit this transaction makes."""
        return Marker(self.base.version + 1, self.new_id)

    @property
    def has_ended(self) -> bool:
        """Return whether the status is final."""
        return not ALLOWED[self.status]

    def move(self, status: Status) -> None:
        """Change to ``status``. Raises LifecycleError if that is not allowed from the current status."""
        if status not in ALLOWED[self.status]:
            raise LifecycleError(
                f"Transaction {self.number} on {self.base} is {self.status.value} and cannot become {status.value}.",
                hint="Begin a new transaction.",
            )
        self.status = status

    def require_open(self) -> None:
        """Raise LifecycleError unless the transaction is OPEN."""
        if self.status is not Status.OPEN:
            raise LifecycleError(
                f"Transaction {self.number} on {self.base} is {self.status.value}, not OPEN.",
                hint="Begin a new transaction.",
            )

    def find_staged(self, names: Sequence[str], seals: Seals) -> list[Path]:
        """Return the paths of staged files.

        Raises InvalidInputError (a name is repeated, or is not a plain file in the staging folder), FormatError (a file
        that its writer has completed is missing or is no plain file).
        """
        if unknown := seals.keys() - set(names):
            raise InvalidInputError(f"The commit has seals of {sorted(unknown)}, but does not list these files.")
        if len(set(names)) != len(names):
            raise InvalidInputError(f"The commit lists a staged file twice: {list(names)}.")
        return [self._find_staged(name, is_sealed=name in seals) for name in names]

    def _find_staged(self, name: str, *, is_sealed: bool) -> Path:
        path = self.staging / name
        is_there = path.is_file() and not path.is_symlink()
        if _STAGED_NAME.fullmatch(name) is None or not (is_there or is_sealed):
            raise InvalidInputError(f"{name!r} is not a file in the staging folder {self.staging}.")
        if not is_there:
            raise FormatError(f"{path} is missing or is no plain file, although its writer has completed it.")
        return path

    def drop_ticket(self) -> None:
        """Remove the ticket, so that no worker finds the transaction. A ticket that cannot be removed is harmless."""
        if self.ticket is not None:
            with suppress(OSError):
                self.ticket.unlink()
            self.ticket = None

    def clear(self) -> None:
        """Remove the staging folder and the ticket."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.drop_ticket()
