"""The price of a full local disk: local copies. A query survives that, and without a warning would only be slow."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.state_store.local.damage import is_full
from pyspark_ckpt.state_store.log import StoreLog


class FullDisk:
    """Counts how often a local copy of one store was given up because the disk was full, and warns of it."""

    def __init__(self, folder: Path, log: StoreLog) -> None:
        """``folder``: the local folder of the executor."""
        self.count = 0
        self._folder, self._log = folder, log

    def note(self, problem: object) -> None:
        """If ``problem`` is a full disk or quota, count it, and warn of the folder once an hour."""
        if is_full(problem):
            self.count += 1
            self._log.warn_of_standing(
                "the disk of the local folder %s is full: local copies of state are given up, and versions are "
                "restored from the remote place instead, which slows batches down. Free space there, or set "
                "spark.sql.streaming.stateStore.ckpt.localDir to a folder on a larger disk",
                self._folder,
            )
