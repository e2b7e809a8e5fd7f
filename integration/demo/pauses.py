"""Aircraft that do not leave New York for two weeks: a keyed operator, and the same in a plain Python loop."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

NAME = "pauses"
COLUMNS = ["tailnum", "since", "departures", "airports"]
PAUSE = timedelta(days=14)
RECENT = timedelta(days=60)
LATENESS = timedelta(hours=2)


class Pauses(ckpt.KeyedProcessor):
    """A row for each pause: found by a timer, or by the next departure if that comes in the same batch."""

    departures = ckpt.ValueState("departures", "long", default=0)
    last = ckpt.ValueState("last", "timestamp")
    airports = ckpt.MapState("airports", "string", "boolean", ttl=ckpt.Ttl(RECENT, clock="event"))
    ground = ckpt.Timers("ground", clock="event")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Take the aircraft's departures in the order of time."""
        last = self.last.value()
        for row in rows:
            if last is not None:
                self.ground.delete(last + PAUSE)
                if row.departure - last >= PAUSE:
                    yield self._pause(key, last)
            last = row.departure
            self.departures.update(self.departures.value() + 1)
            self.airports.put(row.origin, value=True)
        self.last.update(last)
        self.ground.register(last + PAUSE)

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Two weeks are over."""
        yield self._pause(key, timer.at - PAUSE)
        self.last.clear()

    def _pause(self, key: Any, since: datetime) -> Sequence[Any]:  # noqa: ANN401
        return key.tailnum, since, self.departures.value(), len(list(self.airports.keys()))


def pauses(flights: DataFrame) -> DataFrame:
    """The pauses as a stream."""
    known = flights.where("tailnum is not null").withWatermark("departure", f"{LATENESS.seconds} seconds")
    keyed = ckpt.keyed(known, by="tailnum", uid=NAME, order_by="departure")
    return keyed.process(Pauses(), "tailnum string, since timestamp, departures long, airports long", "append")


def batches_of(checkpoints: Sequence[Path], files: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The rows of each batch, of a query that has had these ``checkpoints``, one after the other.

    As a rule those of a file each, and none in the last. But a file that Spark has listed for a batch, and was killed
    before it had planned that, comes together with the next one when it begins again.
    """
    ends: dict[int, int] = {}
    for checkpoint in checkpoints:
        for log in (checkpoint / "offsets").iterdir():
            if log.name.isdigit():
                ends[int(log.name)] = json.loads(log.read_text().splitlines()[-1])["logOffset"] + 1
    batches, begin = [], 0
    for _, end in sorted(ends.items()):
        batches.append(pd.concat(files[begin:end]) if end > begin else files[0].head(0))
        begin = end
    return batches


def pauses_in_one_go(batches: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The same in plain Python. An airport counts for the time to live after its last use: at a row, or a timer."""
    found: list[tuple[str, datetime, int, int]] = []
    departures: dict[str, int] = defaultdict(int)
    last: dict[str, datetime] = {}
    used: dict[str, dict[str, datetime]] = defaultdict(dict)
    watermark = newest = pd.Timestamp(0, tz="UTC")

    def pause(tailnum: str, since: datetime, now: datetime) -> None:
        airports = sum(now - at < RECENT for at in used[tailnum].values())
        found.append((tailnum, since, departures[tailnum], airports))

    for batch in batches:
        known = batch.dropna(subset=["tailnum"])
        for tailnum, departure, origin in zip(known["tailnum"], known["departure"], known["origin"], strict=True):
            if tailnum in last and departure - last[tailnum] >= PAUSE:
                pause(tailnum, last[tailnum], departure)
            last[tailnum] = departure
            departures[tailnum] += 1
            used[tailnum][origin] = departure
        for tailnum, since in list(last.items()):
            if since + PAUSE <= watermark:
                pause(tailnum, since, since + PAUSE)
                del last[tailnum]
        newest = newest if known.empty else max(newest, known["departure"].max())
        watermark = max(watermark, newest - LATENESS)
    return pd.DataFrame(found, columns=COLUMNS)
