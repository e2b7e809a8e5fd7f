"""Stream-stream joins: every type and every state format Spark 4.3 has for it.

Formats 1 and 2 keep four stores, 3 and 4 one store with virtual column families; Spark allows 3 and 4 on providers
that have those, of its own two only RocksDB. Format 1 has no flag for matched rows, so Spark joins with it inner only.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from integration.operators import inputs
from integration.operators.providers import HDFS_BACKED, ROCKSDB
from integration.operators.replay import JOIN_SIDES, Case, StateView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from integration.operators.conftest import Compare

_SIDES = (inputs.one_side(seed=8), inputs.one_side(seed=9))
_TYPES = ("inner", "leftOuter", "rightOuter", "fullOuter", "leftSemi")
_STORES = tuple(
    StateView({"storeName": f"{side}-{store}"})
    for side, store in product(("left", "right"), ("keyToNumValues", "keyWithIndexToValue"))
)
_NEAR = "l.at between r.at - interval 4 minutes and r.at + interval 6 minutes"


def _format(version: int) -> dict[str, str]:
    return {"spark.sql.streaming.join.stateFormatVersion": str(version)}


def _two_sides(frames: Sequence[DataFrame], watermark: str = "5 minutes") -> tuple[DataFrame, DataFrame]:
    left, right = (frame.withWatermark("at", watermark) for frame in frames)
    return left.alias("l"), right.alias("r")


def _in_time(join_type: str, frames: Sequence[DataFrame]) -> DataFrame:
    left, right = _two_sides(frames)
    near = f.expr(f"l.key = r.key and {_NEAR}")
    joined = left.join(right, near, join_type)
    return joined.select("l.*") if join_type == "leftSemi" else joined.select("l.*", f.struct("r.*").alias("r"))


def _in_window(frames: Sequence[DataFrame]) -> DataFrame:
    left, right = _two_sides(frames)
    window = f.window("at", "5 minutes").alias("window")
    left, right = (side.select("key", "tag", "number", window) for side in (left, right))
    return left.join(right, ["window", "key"], "fullOuter")


def _for_ever(frames: Sequence[DataFrame]) -> DataFrame:
    left, right = frames[0].alias("l"), frames[1].alias("r")
    return left.join(right, f.expr("l.key = r.key and l.tag = 'x' and l.number <= r.number + 20"))


def _null_safe(frames: Sequence[DataFrame]) -> DataFrame:
    left, right = _two_sides(frames)
    return left.join(right, f.expr(f"l.key <=> r.key and l.tag <=> r.tag and {_NEAR}"), "leftOuter")


def _with_itself(frames: Sequence[DataFrame]) -> DataFrame:
    left, right = _two_sides([frames[0], frames[0]])
    return left.join(right, f.expr(f"l.key = r.number % 14 and {_NEAR}")).select("l.number", "r.number", "r.tag")


def _on_numbers(frames: Sequence[DataFrame]) -> DataFrame:
    left, right = frames[0].limit(12).alias("l"), frames[1].alias("r")
    return left.join(right, f.expr("l.d = r.d")).select("l.d", "r.f")


CASES = {
    f"{join_type}, format {version}": Case(
        lambda frames, join_type=join_type: _in_time(join_type, frames),
        _SIDES,
        settings=_format(version),
        state=JOIN_SIDES,
    )
    for version, join_type in product((2, 3, 4), _TYPES)
} | {
    "inner, format 1": Case(
        lambda frames: _in_time("inner", frames), _SIDES, settings=_format(1)|{"spark.sql.streaming.stateStore.stateSchemaCheck":"false"}, state=JOIN_SIDES + _STORES
    ),
    "without watermark, format 2": Case(_for_ever, _SIDES, settings=_format(2), state=_STORES),
    "without watermark, format 3": Case(_for_ever, _SIDES, settings=_format(3), state=JOIN_SIDES),
    "without watermark, format 4": Case(_for_ever, _SIDES, settings=_format(4), state=JOIN_SIDES),
    "in windows, format 2": Case(_in_window, _SIDES, settings=_format(2), state=JOIN_SIDES),
    "in windows, format 4": Case(_in_window, _SIDES, settings=_format(4), state=JOIN_SIDES),
    "null keys, format 2": Case(_null_safe, _SIDES, settings=_format(2), state=JOIN_SIDES),
    "null keys, format 4": Case(_null_safe, _SIDES, settings=_format(4), state=JOIN_SIDES),
    "with itself, format 2": Case(_with_itself, _SIDES[:1], settings=_format(2), state=JOIN_SIDES),
    "zeroes and NaN, format 2": Case(
        _on_numbers, (inputs.numbers(), inputs.numbers()), settings=_format(2), state=JOIN_SIDES
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_join_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    one_store = name.endswith(("3", "4"))
    compare(CASES[name], ROCKSDB if one_store else HDFS_BACKED)
