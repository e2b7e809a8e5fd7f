"""Timers that register timers for the past for ever end with an error that names them; those that move on fire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.state_store.errors import InvalidInputError

OUTPUT = "user string, fired bigint"


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.firing.MAX_RETURNS", 2000)
    monkeypatch.setattr("pyspark_ckpt.operators.task.firing._FEW", 500)


class Again(ckpt.KeyedProcessor):
    """Registers the present in on_timer, which is due already."""

    tick = ckpt.Timers("tick", clock="processing")

    def process(self, ctx: ckpt.Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        self.tick.register(ctx.processing_time_ms)

    def on_timer(self, ctx: ckpt.Context, _key: Any, _timer: ckpt.Timer) -> None:  # noqa: ANN401
        self.tick.register(ctx.processing_time_ms)


class BetweenTwo(Again):
    """Goes from one instant of the past to another and back."""

    def on_timer(self, ctx: ckpt.Context, _key: Any, timer: ckpt.Timer) -> None:  # noqa: ANN401
        self.tick.register(ctx.processing_time_ms - (timer.at_ms == ctx.processing_time_ms))


class Crawls(Again):
    """Moves on so slowly that it would fire for years."""

    def on_timer(self, _ctx: ckpt.Context, _key: Any, timer: ckpt.Timer) -> None:  # noqa: ANN401
        self.tick.register(timer.at_ms + 1)

    def process(self, ctx: ckpt.Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        self.tick.register(ctx.processing_time_ms - 1_000_000_000)


class AgainInColumns(ckpt.VectorProcessor):
    """The same for all keys at once."""

    tick = ckpt.Timers("tick", clock="processing")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> None:
        self._register(ctx, len(batch))

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> None:
        self._register(ctx, len(timers))

    def _register(self, ctx: ckpt.VectorContext, count: int) -> None:
        at = pa.array(np.full(count, ctx.processing_time_ms), pa.timestamp("ms"))
        self.tick.register_rows(ctx.keys, ctx.key_index, at)


class CatchesUp(ckpt.KeyedProcessor):
    """A timer for each second that has passed, and others beside each; many more than may go back."""

    tick = ckpt.Timers("tick", clock="processing")
    fired = ckpt.ValueState("fired", "bigint", default=0)

    def process(self, ctx: ckpt.Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        self.tick.register(ctx.processing_time_ms + 1000)
        for number in range(1500):
            self.tick.register(ctx.processing_time_ms, f"{number}")

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        self.fired.update(self.fired.value() + 1)
        if not timer.namespace:
            self.tick.register(timer.at_ms + 1000)
            if timer.at_ms + 1000 > ctx.processing_time_ms:
                yield key.user, self.fired.value()


@pytest.mark.parametrize("processor", [Again(), BetweenTwo(), Crawls(), AgainInColumns()])
def test_timers_that_never_move_on_are_refused_by_name(processor: Any) -> None:  # noqa: ANN401
    told = r"Timers 'tick' of key \('ada',\): on_timer\(\) has registered"
    stream = testing.keyed("user string", by="user")
    with stream.process(processor, OUTPUT, "append") as harness, pytest.raises(InvalidInputError, match=told):
        harness.run([("ada",), ("bob",)])


def test_timers_that_move_on_fire_however_many_they_are() -> None:
    with testing.keyed("user string", by="user").process(CatchesUp(), OUTPUT, "append") as harness:
        harness.run([("ada",), ("bob",)])
        assert sorted(harness.advance_processing_time(timedelta(seconds=5000))) == [("ada", 6500), ("bob", 6500)]
