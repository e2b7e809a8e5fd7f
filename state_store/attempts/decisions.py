"""Decide which commit of a version stands. A run keeps the answer it was given; otherwise the checkpoint decides."""

from __future__ import annotations

import threading

from pyspark_ckpt.state_store.attempts.runs import Epochs
from pyspark_ckpt.state_store.attempts.winners import Evidence, declare_winner, resolve
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.exclusive import require_exclusive
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker, is_id
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.identity import Caller, Identity
from pyspark_ckpt.state_store.log import StoreLog

DECISIONS_KEPT = 64


class Decisions:
    """Decisions about one store. Safe to call from many threads."""

    def __init__(
        self, identity: Identity, place: BlobPlace, checkpoint: BlobPlace, epochs: Epochs, log: StoreLog
    ) -> None:
        """Decide by the contents of ``place`` and ``checkpoint``."""
        self._identity = identity
        self._place = place
        self._checkpoint = checkpoint
        self._epochs = epochs
        self._log = log
        self._lock = threading.Lock()
        self._decided: dict[tuple[str, int], Marker] = {}

    def find_commit(self, caller: Caller, version: int, commit_id: str | None) -> Marker:
        """Return the commit of a version that stands for this caller. A commit given by its id is not looked up.

        Raises as ``resolve``; InvalidInputError (also if format 1 cannot decide on this place).
        """
        if version < 0 or (commit_id is not None and not is_id(commit_id)):
            raise InvalidInputError(f"{self._identity}: version {version} with id {commit_id!r} is not a valid commit.")
        if caller.format == 1:
            if caller.run_id:
                self._require_exclusive()
            self._epochs.of(caller.run_id)  # number the run before it commits anything
        if version == 0:
            return EMPTY
        if commit_id is not None:
            return Marker(version, commit_id)
        decided = self._decided.get((caller.run_id, version))
        if decided is not None:
            return decided
        return self._resolve(version)

    def _require_exclusive(self) -> None:
        """Refuse places on which two runs could get the same number, or two commits of a version could win."""
        for place in (self._checkpoint, self._place):
            require_exclusive(
                place,
                "checkpoint format 1",
                "Set spark.sql.streaming.stateStore.checkpointFormatVersion to 2. The commit log then says which "
                "commit counts, and a query may continue with format 2 from a checkpoint of format 1.",
            )

    def _resolve(self, version: int) -> Marker:
        return resolve(self._identity, version, Evidence(self._place, self._checkpoint))

    def decide(self, caller: Caller, commit: Marker) -> None:
        """Remember for this run which commit of a version stands. A reader outside a query has no run to remember."""
        if not caller.run_id:
            return
        with self._lock:
            self._decided[caller.run_id, commit.version] = commit
            while len(self._decided) > DECISIONS_KEPT:
                del self._decided[next(iter(self._decided))]

    def settle(self, caller: Caller, delta: DeltaName) -> Marker:
        """Declare a format 1 commit the winner, unless another was first or its run is over.

        Returns the commit that stands. The delta of a commit that lost is deleted. Raises StorageError.
        """
        commit = delta.commit
        if self._epochs.is_over(caller.run_id, commit.version):
            stands = self._resolve(commit.version)
        else:
            stands = declare_winner(self._place, commit, self._epochs.of(caller.run_id), caller.run_id)
        self.decide(caller, stands)
        if stands != commit:
            self._log.info("%s: commit %s was first; %s is dropped", self._identity, stands, commit)
            try:
                self._place.delete(str(delta))
            except CkptError as problem:
                self._log.warning("%s could not be dropped; retention will delete it: %s", commit, problem)
        return stands
