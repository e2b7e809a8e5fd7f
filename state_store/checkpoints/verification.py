"""Read all that a version needs, and say what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import digests_of, require_counts
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import CkptError, NotFoundError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, STATE_BYTES, Marker
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.log import StoreLog

VERIFY_ATTEMPTS = 3
"""How many versions of a store are looked at when retention takes one after the other away."""


@dataclass(frozen=True)
class Verified:
    """Outcome of reading everything that one version of a store needs; no ``problems``: all of it is right.

    ``digests``: of each state, by its name; none if it could not be read.
    """

    identity: Identity
    version: int
    rows: int
    bytes_read: int
    problems: tuple[str, ...]
    digests: Mapping[str, Digest] = field(default_factory=dict)


def verify_version(checkpoint: Checkpoint, identity: Identity, version: int) -> Verified:
    """Restore a version of a store into a temporary folder: every checksum, the lineage, markers and row counts."""
    return _verify(checkpoint, identity, version)[0]


def verify_newest(checkpoint: Checkpoint, identity: Identity) -> Verified:
    """``verify_version`` of the newest committed version, or of the one that is newest by then if that has gone.

    So a query may run: nothing is held against its retention. What is found was read of ``Verified.version``.
    """
    for _ in range(VERIFY_ATTEMPTS):
        version = checkpoint.newest_version
        found, is_missing = _verify(checkpoint, identity, version)
        if is_missing:
            checkpoint.look_again()
        if checkpoint.newest_version == version:
            return found
    faster = (
        f"{identity}: {VERIFY_ATTEMPTS} versions were looked at, each the newest by then; if retention was faster "
        "each time, take a savepoint, which it leaves alone, and verify that"
    )
    return replace(found, problems=(*found.problems, faster))


def _verify(checkpoint: Checkpoint, identity: Identity, version: int) -> tuple[Verified, bool]:
    """What a version of a store was found to be, and whether it ended with an object that is not there."""
    problems = _Problems(identity.short)
    try:
        commit = checkpoint.commit_of(identity, version)
        with checkpoint.restore(identity, commit, problems.log) as restored:
            counts = _count_rows(restored.database, restored.meta, commit, problems.log)
            digests = digests_of(restored.database, restored.meta.states)
            require_counts(counts, digests, str(identity))
            rows = restored.meta.rows
    except CkptError as problem:
        is_missing = isinstance(problem, NotFoundError)
        return Verified(identity, version, 0, 0, (*problems.found, f"{problem}")), is_missing
    size_bytes = restored.metrics["downloaded_bytes"]
    return Verified(identity, version, rows, size_bytes, tuple(problems.found), digests), False


class _Problems(logging.Handler):
    """What a store's log warns of."""

    def __init__(self, store: str) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.log = StoreLog(f"verify.{store}", store)
        self.log.logger.propagate = False
        self.log.logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def _count_rows(database: Database, meta: StoreMeta, commit: Marker, log: StoreLog) -> dict[str, int]:
    """Count all rows, one by one, and compare with what the commit says of them; how many each state has."""
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
            log.warning("state %r has %s rows, and the commit says %s", state.name, found, state.rows)
    for number, found in counts.items():
        log.warning("%s rows are of state %s, which the commit does not know", found, number)
    return of_states
