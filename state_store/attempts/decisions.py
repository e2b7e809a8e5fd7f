"""Which commit of a version stands, for whom: what a run was told stays so, and else what the checkpoint says."""

from __future__ import annotations

import threading

from pyspark_ckpt.state_store.attempts.winners import Epochs, declare_winner, resolve
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
        """Decide by what is in ``place`` and ``checkpoint``."""
        self._identity = identity
        self._place = place
        self._checkpoint = checkpoint
        self._epochs = epochs
        self._log = log
        self._lock = threading.Lock()
        self._decided: dict[tuple[str, int], Marker] = {}

    def commit_of(self, caller: Caller, version: int, commit_id: str | None) -> Marker:
        """The commit of a version that stands for this caller; whether it is there is not looked at if its id is given.

        Raises as ``resolve``; InvalidInputError (also for a place on which format 1 cannot decide).
        """
        if version < 0 or (commit_id is not None and not is_id(commit_id)):
            raise InvalidInputError(f"{self._identity}: version {version} with id {commit_id!r} cannot exist.")
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
        """Refuse places that let two runs have one number, or two commits of a version win."""
        for place in (self._checkpoint, self._place):
            require_exclusive(
                place,
                "checkpoint format 1",
                "Set spark.sql.streaming.stateStore.checkpointFormatVersion to 2: then the commit log says which "
                "commit counts, and a query may go on with it from a checkpoint of format 1.",
            )

    def _resolve(self, version: int) -> Marker:
        who = self._identity
        return resolve(self._place, self._checkpoint, version, who.operator, who.partition, str(who))

    def decide(self, caller: Caller, commit: Marker) -> None:
        """Remember for this run which commit of a version stands; a reader outside a query belongs to no run."""
        if not caller.run_id:
            return
        with self._lock:
            self._decided[caller.run_id, commit.version] = commit
            while len(self._decided) > DECISIONS_KEPT:
                del self._decided[next(iter(self._decided))]

    def settle(self, caller: Caller, delta: DeltaName) -> Marker:
        """Declare a format 1 commit the winner, unless another was first; a loser's traces go. Raises StorageError."""
        commit = delta.commit
        if self._epochs.is_over(caller.run_id, commit.version):
            stands = self._resolve(commit.version)
        else:
            stands = declare_winner(self._place, commit, self._epochs.of(caller.run_id), caller.run_id)
        self.decide(caller, stands)
        if stands != commit:
            self._log.info("%s was committed as %s first; %s is dropped", self._identity, stands, commit)
            try:
                self._place.delete(str(delta))
            except CkptError as problem:
                self._log.warning("%s could not be dropped and is left to retention: %s", commit, problem)
        return stands
