"""Read everything that a version needs, and report the problems in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_ckpt.state_store.attempts.agreement import find_differences, select_copies
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import digest_states, find_other_digests, require_counts
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import CkptError, NotFoundError, StorageError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, STATE_BYTES, Marker
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.log import StoreLog

VERIFY_ATTEMPTS = 3
"""How many versions of a store are tried if retention retires them one after the other."""


@dataclass(frozen=True)
class Verified:
    """The result of reading everything that one version of a store needs. Without ``problems``, all of it is intact.

    ``passed_over``: those problems that a restore gets around, by an older snapshot and more deltas. ``digests``: by
    state name; empty if the version could not be read. ``snapshots``, ``deltas``, ``table_files``: how many were read.
    The table files inside deltas are not counted.
    """

    identity: Identity
    version: int
    rows: int
    bytes_read: int
    problems: tuple[str, ...]
    digests: Mapping[str, Digest] = field(default_factory=dict)
    snapshots: int = 0
    deltas: int = 0
    table_files: int = 0
    copies: tuple[StateMeta, ...] = ()
    """Its broadcast states."""
    passed_over: tuple[str, ...] = ()

    @property
    def is_restorable(self) -> bool:
        """Whether a restore makes exactly the version, whatever it has to pass over."""
        return len(self.passed_over) == len(self.problems)


def find_differing_copies(found: Sequence[Verified]) -> list[str]:
    """Return a message for each partition whose broadcast states differ from those of the first one."""
    first: dict[tuple[int, str], Verified] = {}
    problems: list[str] = []
    for each in found:
        if each.rows or each.copies:
            known = first.setdefault((each.identity.operator, each.identity.name), each)
            problems += find_differences((each.identity, each.copies), (known.identity, known.copies))
    return problems


def verify_version(checkpoint: Checkpoint, identity: Identity, version: int) -> Verified:
    """Restore a version of a store into a temporary folder; check every checksum, lineage, markers and row counts.

    Raises StorageError if there is no temporary folder.
    """
    return _verify(checkpoint, identity, version)[0]


def verify_newest(checkpoint: Checkpoint, identity: Identity) -> Verified:
    """Verify the newest committed version, or a newer one if retention has retired it meanwhile.

    The query may run: no version is pinned against its retention. ``Verified.version`` is the version that was read.
    Raises StorageError if there is no temporary folder.
    """
    for _ in range(VERIFY_ATTEMPTS):
        version = checkpoint.newest_version
        found, is_missing = _verify(checkpoint, identity, version)
        if is_missing:
            checkpoint.look_again()
        if checkpoint.newest_version == version:
            return found
    faster = (
        f"{identity}: {VERIFY_ATTEMPTS} versions were tried, each the newest at that time; if retention retired each "
        "of them, take a savepoint, which retention leaves alone, and verify that"
    )
    return replace(found, problems=(*found.problems, faster))


def _verify(checkpoint: Checkpoint, identity: Identity, version: int) -> tuple[Verified, bool]:
    """Return the result for a version of a store, and whether reading stopped at a missing object."""
    problems = _Problems(identity.short)
    with checkpoint.workplace.folder() as folder:  # without one, the checkpoint has no problem
        try:
            commit = checkpoint.find_commit(identity, version)
            place, copy = checkpoint.find_place(identity), folder / "copy"
            with checkpoint.workplace.restore_from(place, identity, commit, copy, problems.log) as restored:
                passed_over = tuple(problems.found)
                counts = _count_rows(restored.database, restored.meta, commit, problems.log)
                digests = digest_states(restored.database, restored.meta.states)
                require_counts(counts, digests, str(identity))
                for state, held in find_other_digests(restored.meta.states, digests):
                    message = "state %r has the digest %s, but the commit says %s"
                    problems.log.warning(message, state.name, held.sum, state.digest)
        except StorageError:  # it could not be read; no damage is known
            raise
        except CkptError as problem:
            is_missing = isinstance(problem, NotFoundError)
            return Verified(identity, version, 0, 0, (*problems.found, f"{problem}")), is_missing
    found = Verified(
        identity,
        version,
        restored.meta.rows,
        restored.metrics["downloaded_bytes"],
        tuple(problems.found),
        digests,
        int(restored.is_of_snapshot),
        restored.metrics["replayed_deltas"],
        len(restored.table_files),
        select_copies(restored.meta),
        passed_over,
    )
    return found, False


class _Problems(logging.Handler):
    """Collects the warnings in a store's log."""

    def __init__(self, store: str) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.log = StoreLog(f"verify.{store}", store)
        self.log.logger.propagate = False
        self.log.logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def _count_rows(database: Database, meta: StoreMeta, commit: Marker, log: StoreLog) -> dict[str, int]:
    """Count all rows one by one and compare with the commit; return the number of each state."""
    held = database.marker()
    if held != commit:
        log.warning("the restored database holds %s, not %s", held, commit)
    counts: dict[int, int] = {}
    for key, _ in database.rows():
        if key != MARKER_KEY:
            number = int.from_bytes(key[:STATE_BYTES], "big")
            counts[number] = counts.get(number, 0) + 1
    of_states = {state.name: counts.pop(state.number, 0) for state in meta.states}
    for state in meta.states:
        found = of_states[state.name]
        if found != state.rows and state.is_counted:
            log.warning("state %r has %s rows, but the commit says %s", state.name, found, state.rows)
    for number, found in counts.items():
        log.warning("%s rows belong to state %s, which the commit does not list", found, number)
    return of_states
