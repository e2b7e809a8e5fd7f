"""Streaming aggregation: state formats, output modes, windows, watermarks, and every type as key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from integration.operators import inputs
from integration.operators.replay import Case, replay
from integration.sample import sampled
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from integration.operators.conftest import Compare
    from integration.operators.providers import Provider

_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
_LATENESS = "10 minutes"


def _measures() -> list[Column]:
    return [
        f.count("*").alias("rows"),
        f.sum("amount").alias("total"),
        f.avg("amount").alias("mean"),
        f.stddev("amount").alias("spread"),
        f.min("word").alias("least"),
        f.max(f.struct("at", "id")).alias("newest"),
        f.first("word").alias("first"),
        f.collect_list("id").alias("ids"),
        f.approx_count_distinct("word").alias("words"),
    ]


def _by_user(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy("user").agg(*_measures())


def _of_everything(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].agg(*_measures())


def _by_window(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy(f.window("at", "5 minutes"), "user").agg(*_measures())


def _by_window_with_watermark(frames: Sequence[DataFrame]) -> DataFrame:
    return _by_window([frames[0].withWatermark("at", _LATENESS)])


def _by_sliding_window(frames: Sequence[DataFrame]) -> DataFrame:
    timely = frames[0].withWatermark("at", _LATENESS)
    return timely.groupBy(f.window("at", "10 minutes", "4 minutes")).agg(*_measures())


def _by_event_time(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].withWatermark("at", _LATENESS).groupBy("at").agg(f.count("*"), f.sum("amount"))


def _by_kinds(frames: Sequence[DataFrame]) -> DataFrame:
    typed = frames[0].select(
        "*",
        f.expr("make_dt_interval(c_byte, c_short)").alias("c_day_interval"),
        f.expr("cast(c_string as char(50))").alias("c_char"),
    )
    return typed.groupBy(*typed.columns).agg(f.count("*").alias("rows"))


def _values_of_kinds(frames: Sequence[DataFrame]) -> DataFrame:
    held = [c for c in frames[0].columns if c != "c_byte"]
    return (
        frames[0]
        .groupBy("c_byte")
        .agg(
            *(f.first(c, ignorenulls=True).alias(f"first_{c}") for c in held),
            *(f.max(c).alias(f"max_{c}") for c in held),
            *(f.collect_list(c).alias(f"all_{c}") for c in held),
            f.first(f.expr("map('k', c_long, 'l', 1L)")).alias("a_map"),
            *([f.max(f.expr("c_string collate UNICODE_CI")).alias("collated")] if has("4.0") else []),
        )
    )


_EVENTS = (inputs.events(seed=1),)
_V1 = {_FORMAT: "1"}

CASES = {
    "by key, update": Case(_by_user, _EVENTS, "update"),
    "by key, update, format 1": Case(_by_user, _EVENTS, "update", _V1),
    "everything, update": Case(_of_everything, _EVENTS, "update"),
    "everything, complete, format 1": Case(_of_everything, _EVENTS, "complete", _V1),
    "window, complete": Case(_by_window, _EVENTS, "complete"),
    "window, watermark, append": Case(_by_window_with_watermark, _EVENTS, "append"),
    "window, watermark, append, format 1": Case(_by_window_with_watermark, _EVENTS, "append", _V1),
    "window, watermark, update": Case(_by_window_with_watermark, _EVENTS, "update"),
    "sliding window, watermark, append": Case(_by_sliding_window, _EVENTS, "append"),
    "event time, watermark, append": Case(_by_event_time, _EVENTS, "append"),
    "keys of all types": Case(_by_kinds, (inputs.kinds(seed=2),), "update"),
    "values of all types": Case(_values_of_kinds, (inputs.kinds(seed=3),), "update"),
    "values of all types, format 1": Case(_values_of_kinds, (inputs.kinds(seed=3),), "update", _V1),
    "zeroes, NaN and null as keys": Case(
        lambda frames: frames[0].groupBy("d", "f").count(), (inputs.numbers(),), "update"
    ),
    "a double as the only key": Case(
        lambda frames: frames[0].groupBy("d").agg(f.sum("f"), f.count("*")), (inputs.numbers(),), "complete"
    ),
    "a nested key": Case(lambda frames: frames[0].groupBy("c_nested").count(), (inputs.kinds(seed=4),), "update"),
    "a key of a collation that compares bytes": Case(
        lambda frames: frames[0].groupBy(f.expr("word collate UTF8_BINARY")).count(), _EVENTS, "update"
    ),
}


_LEFT_OUT = {
    "by key, update",
    "everything, update",
    "window, watermark, append, format 1",
    "window, watermark, update",
    "event time, watermark, append",
    "values of all types",
    "a nested key",
    "by key, update, format 1",
    "sliding window, watermark, append",
    "window, complete",
    "a key of a collation that compares bytes",
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_aggregation_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])


def test_aggregation_is_refused_when_the_key_has_equal_strings_of_different_bytes(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    by_collated = Case(lambda frames: frames[0].groupBy(f.expr("word collate UTF8_LCASE")).count(), _EVENTS, "update")
    with pytest.raises(StreamingQueryException, match="BINARY_INEQUALITY"):
        replay(spark, by_collated, provider, tmp_path)
