"""Stream-stream joins: every type and every state format Spark 4.3 has for it.

Formats 1 and 2 keep four stores, 3 and 4 one store with virtual column families. Spark 4.3 writes no state schema for
format 1, which has inner joins only; such a query runs without the schema check, and cannot be read back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from integration.operators import inputs
from integration.operators.providers import HDFS_BACKED, OURS, ROCKSDB
from integration.operators.replay import COUNTS, JOIN_SIDES, Case, StateView, replay
from integration.sample import sampled
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.conftest import Compare
    from integration.operators.replay import Query

_SIDES = (inputs.one_side(seed=8), inputs.one_side(seed=9))
_TYPES = ("inner", "leftOuter", "rightOuter", "fullOuter", "leftSemi")
_STORES = tuple(
    StateView({"storeName": f"{side}-{store}"})
    for side, store in product(("left", "right"), ("keyToNumValues", "keyWithIndexToValue"))
)
_NEAR = "l.at between r.at - interval 4 minutes and r.at + interval 6 minutes"


_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_NO_SCHEMA = {"spark.sql.streaming.stateStore.stateSchemaCheck": "false"}
_EXACT = tuple(name for name in COUNTS if name != "numRowsTotal")


def _format(version: int) -> dict[str, str]:
    return {_FORMAT: str(version)}


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


def _column_families(name: str, version: int) -> Case:
    query, sources, settings = _QUERIES[name], _SIDES, _format(version)
    counts = _BY_CHANCE.get(name, COUNTS) if version == 4 else COUNTS
    return Case(query, sources, settings=settings, state=_VALUES, counts=counts)


# In state format 4 Spark's reader shows an event time that is not in the stored key: whatever bytes follow it.
_VALUES = tuple(replace(view, columns=("key.field0", "value", "partition_id")) for view in JOIN_SIDES)
_QUERIES: dict[str, Query] = {
    join_type: lambda frames, join_type=join_type: _in_time(join_type, frames) for join_type in _TYPES
} | {"without watermark": _for_ever, "null keys": _null_safe, "with itself": _with_itself, "in windows": _in_window}

# Format 4 keeps the rows of one key and event time as the values of one stored row. For a row without event time Spark
# draws one of 1,024 buckets instead: how many stored rows come of it is chance, with any provider.
_BY_CHANCE = {"without watermark": _EXACT}

CASES = (
    {
        # In four stores: what is not here differs from what is by its query alone, which format 4 is asked for.
        f"{name}, format 2": Case(_QUERIES[name], _SIDES, settings=_format(2), state=JOIN_SIDES)
        for name in ("inner", "leftOuter", "leftSemi", "without watermark", "null keys")
    }
    | {f"{name}, format 4": _column_families(name, 4) for name in _QUERIES}
    | {
        # As format 2 in one store: what differs between the types of join is seen in the other formats.
        f"{name}, format 3": _column_families(name, 3)
        for name in ("fullOuter", "leftSemi")
    }
    | {
        "inner, format 1": Case(_QUERIES["inner"], _SIDES, settings=_format(1) | _NO_SCHEMA, state=()),
        "four stores, format 2": Case(_for_ever, _SIDES, settings=_format(2), state=_STORES),
        "zeroes and NaN, format 2": Case(
            _on_numbers, (inputs.numbers(), inputs.numbers()), settings=_format(2), state=JOIN_SIDES
        ),
    }
)


_LEFT_OUT = {
    "inner, format 2",
    "leftSemi, format 2",
    "without watermark, format 2",
    "inner, format 4",
    "leftOuter, format 4",
    "fullOuter, format 4",
    "null keys, format 4",
    "with itself, format 4",
    "leftSemi, format 3",
    "leftSemi, format 4",
    "four stores, format 2",
    "rightOuter, format 4",
    "without watermark, format 4",
    "zeroes and NaN, format 2",
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_join_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    in_one_store = name.endswith(("3", "4"))
    compare(CASES[name], ROCKSDB if in_one_store else HDFS_BACKED)


@pytest.mark.parametrize("version", [2, *([3] if has("4.1") else []), *([4] if has("4.3") else [])])
def test_a_new_join_has_the_state_format_that_its_session_asks_for(
    version: int, spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(_QUERIES["inner"], _SIDES, settings=_format(version), state=(), runs=(1,))
    replay(spark, case, OURS, tmp_path)
    assert f'"{_FORMAT}":"{version}"' in (tmp_path / "checkpoint/offsets/0").read_text()
