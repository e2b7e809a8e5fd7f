"""The outcome of rescaling a running query: the query that runs now, and how long none did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.display import count_text, html_table
from pyspark_ckpt.state_store.errors import LifecycleError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_ckpt.state_store.savepoints.restoring.request import Restored


class RescaleError(LifecycleError):
    """A query was stopped to be rescaled, and that failed.

    ``query``: the one that runs now, restarted on its old checkpoint, or on the new one if that has a committed batch;
    None if none runs. The message says from which checkpoint to continue.
    """

    def __init__(self, message: str, *, hint: str, query: StreamingQuery | None) -> None:
        """Keep ``query``."""
        super().__init__(message, hint=hint)
        self.query = query


@dataclass(frozen=True)
class Downtime:
    """Seconds from the last commit of the old query to the first commit of the new one, in four parts.

    ``stop_s``: from the old query's last commit, or from the call if that was later, to its end. ``rescale_s``: making
    the new checkpoint. ``start_s``: the user's function that starts the query. ``first_batch_s``: from its return to
    the first commit, with Spark's start of the query; None if there was no data for a batch.
    """

    stop_s: float
    rescale_s: float
    start_s: float
    first_batch_s: float | None

    @property
    def total_s(self) -> float:
        """The whole downtime. Without a first batch, it ends when the new query waited for data."""
        return self.stop_s + self.rescale_s + self.start_s + (self.first_batch_s or 0.0)

    def __str__(self) -> str:
        batch = "no data for a batch yet" if self.first_batch_s is None else f"first batch {self.first_batch_s:.2f} s"
        parts = f"stop {self.stop_s:.2f} s, rescale {self.rescale_s:.2f} s, start {self.start_s:.2f} s, {batch}"
        return f"down for {self.total_s:.2f} s: {parts}"


@dataclass(frozen=True)
class RescaledQuery:
    """What ``rescale`` returns: the ``query`` that runs now, on ``checkpoint``, and the old checkpoint.

    ``restored``: the proof that state is the same; None if an earlier call had made the checkpoint already.
    ``old_is_deleted``: whether the old checkpoint was deleted, as the caller had asked.
    """

    query: StreamingQuery
    checkpoint: str
    partitions: int
    old_checkpoint: str
    old_partitions: int
    old_is_deleted: bool
    downtime: Downtime
    restored: Restored | None

    def __repr__(self) -> str:
        old = "deleted" if self.old_is_deleted else "kept"
        return (
            f"RescaledQuery({self.checkpoint}, {self.old_partitions} to {count_text(self.partitions, 'partition')}, "
            f"{self.downtime}; {self.old_checkpoint} is {old})"
        )

    def _repr_html_(self) -> str:
        down = self.downtime
        parts = {
            "stop": down.stop_s,
            "rescale": down.rescale_s,
            "start": down.start_s,
            "first batch": down.first_batch_s,
        }
        rows = [(name, "" if each is None else f"{each:.2f}") for name, each in parts.items()]
        return html_table(repr(self), ("part", "seconds"), rows)
