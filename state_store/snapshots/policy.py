"""When a snapshot is due: by number, bytes and age of the deltas, and by the time of a restore."""

from __future__ import annotations

from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.snapshots.lag import SnapshotLag
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast

MIN_SHARE = 0.1
"""Share of the target that deltas may always take, even if the snapshot alone takes longer than the target."""


class SnapshotPolicy:
    """Decides whether a snapshot is due, and why."""

    def __init__(self, options: Options, forecast: RestoreForecast) -> None:
        """Use the limits in ``options``."""
        self._every_versions = options.snapshot_every_versions
        self._every_bytes = options.snapshot_every_bytes
        self._interval_s = options.snapshot_interval_s
        self._target_s = options.restore_target_s
        self._forecast = forecast

    def reason(self, lag: SnapshotLag, table_bytes: int, now_s: float) -> str | None:
        """Return why a snapshot is due, for the log, or None. ``table_bytes``: size of the local database."""
        if lag.deltas == 0:
            return None
        if lag.deltas >= self._every_versions:
            return f"{lag.deltas} versions since the last one"
        if self._every_bytes and lag.delta_bytes >= self._every_bytes:
            return f"{lag.delta_bytes} bytes of deltas since the last one"
        if self._interval_s and now_s - lag.since_s >= self._interval_s:
            return f"the first delta since the last one is {now_s - lag.since_s:.0f} s old"
        restore_s, deltas_s = self.restore_s(lag, table_bytes), self._forecast.deltas_s(lag)
        if restore_s > self._target_s and deltas_s > self._target_s * MIN_SHARE:
            return f"a restore would take {restore_s:.1f} s, and the target is {self._target_s:.1f} s"
        return None

    def restore_s(self, lag: SnapshotLag, table_bytes: int) -> float:
        """Return the seconds that a restore would take now. Without a snapshot, only deltas are counted."""
        snapshot_s = self._forecast.snapshot_s(table_bytes if lag.snapshot_version else 0)
        return snapshot_s + self._forecast.deltas_s(lag)

    def misses_target(self, table_bytes: int) -> bool:
        """Return whether the restore of a snapshot alone takes longer than the target."""
        return self._forecast.snapshot_s(table_bytes) > self._target_s
