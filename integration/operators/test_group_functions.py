"""Functions written for applyInPandasWithState come to the same on keyed state: frames, states, time-outs, errors."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import LongType, StructType

import pyspark_ckpt as ckpt
from integration.operators import inputs
from integration.operators.keyed import play, play_until
from integration.operators.providers import OURS
from integration.operators.replay import Case, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Lines, Query

Function = "Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]"
_KINDS = "n long, third double, text string, even boolean, part decimal(9,3), no string, b binary"
_MIXED = (
    "a string, b string, c string, d string, e string, f decimal(9,1), g binary, "
    "s struct<at timestamp, text string, ntz timestamp_ntz, deep struct<day date>, v variant>"
)
_EVENTS = inputs.events(seed=59)


def _shown(frame: pd.DataFrame) -> str:
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    types = [sorted({type(value).__name__ for value in frame[name]}) for name in frame.columns]
    return f"{kinds} {types} {list(frame.index)} {sorted(map(repr, frame.itertuples(index=False, name=None)))}"


def _see_all(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """What the function is given, as text."""
    before = repr(state.getOption)
    seen = [_shown(frame) for frame in frames]
    kinds = [type(value).__name__ for value in key]
    state.update((len(seen), f"after {before}"[:50]))
    yield pd.DataFrame({"seen": [f"{key!r} {kinds} {before} {seen}"]})
    yield pd.DataFrame()
    yield pd.DataFrame({"seen": []}, dtype=str)


def _keep_kinds(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """States of several types; Spark 4.3 fails to read the type of one that has an array."""
    before = repr(state.getOption)
    rows = sum(map(len, frames))
    if rows % 3 == 0:
        if state.exists:
            state.remove()
    else:
        state.update((rows, rows / 3, f"é{rows}", rows % 2 == 0, Decimal(rows) / 8, None, bytes([rows])))
    yield pd.DataFrame({"seen": [f"{key!r} {before} {state.exists}"]})


def _stamped(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    before = repr(state.getOption)
    newest = max(frame["at"].max() for frame in frames)
    state.update((newest.to_pydatetime(), newest.date()))
    yield pd.DataFrame({"seen": [f"{key!r} {before} {state.get!r}"]})


def _mixed(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Values of other types than the state's that Spark converts, and times and a VARIANT within a struct."""
    from pyspark.sql.types import VariantVal  # new in Spark 4.0

    before = f"{state.getOption!r} {state} {_without_clock(state)}"
    rows, at = sum(map(len, frames)), datetime(2024, 3, 31, 12, 0, 0, 1)  # noqa: DTZ001 - as Spark gives times
    elsewhere = at.replace(tzinfo=timezone(timedelta(hours=rows)))
    inside = (elsewhere if rows % 2 else at, rows / 7, elsewhere, {"day": elsewhere}, VariantVal.parseJson(str(rows)))
    texts = (rows, rows % 2 == 0, rows * 1e-5, rows * 1.25e6, Decimal(rows).scaleb(2))
    state.update((*texts, Decimal(rows) / 8, f"é{rows}", inside))
    yield pd.DataFrame({"seen": [f"{key!r} {before} {state.get!r} {_without_clock(state)}"]})


def _without_clock(state: GroupState) -> dict[str, Any]:
    return {name: value for name, value in json.loads(state.json()).items() if name != "batchProcessingTimeMs"}


def _until_silent(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Some groups time out and go, some time out and stay without state, some set no time-out, some do nothing."""
    frames = list(frames)
    told = f"{key!r} {state.getOption} {state.hasTimedOut} {state.getCurrentWatermarkMs()}"
    shape = [(len(frame), list(frame.columns)) for frame in frames]
    way = 0 if key[0] is None or key[0] != key[0] else int(key[0]) % 4
    if state.hasTimedOut and way == 0:
        state.remove()
    elif state.hasTimedOut and way == 1:
        state.remove()
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 60_000)
    elif way == 2 and state.exists and state.get[0] > 3:
        state.update((state.get[0] + 1,))
    elif not state.hasTimedOut:
        state.update((state.get[0] + sum(map(len, frames)) if state.exists else 1,))
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 4 * 60_000)
    else:
        state.remove()
    yield pd.DataFrame({"seen": [f"{told} {shape}"]})


def _until_idle(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Groups that time out and go, time out and set another time-out, and set none."""
    now_ms, sizes = state.getCurrentProcessingTimeMs(), [len(frame) for frame in frames]
    rows, due_ms = state.getOption or (0, 0)
    told = f"{state.hasTimedOut} {rows} {sizes} {state.hasTimedOut and now_ms > due_ms}"
    if state.hasTimedOut and rows % 2:
        state.remove()
    else:
        state.update((rows + sum(sizes) + state.hasTimedOut, now_ms + 700))
        if key[0] != 3:
            state.setTimeoutDuration(700)
    yield pd.DataFrame({"user": [key[0]], "told": [told]})


def both(
    spark: SparkSession,
    folder: Path,
    source: Source,
    by: tuple[str, ...],
    function: Any,  # noqa: ANN401
    state: str | StructType,
    time_out: str = GroupStateTimeout.NoTimeout,
    prepare: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> tuple[Mapping[int, Lines], Mapping[int, Lines]]:
    """What Spark's own operator and the keyed one put out, batch by batch, with a restart."""

    def native(frames: Any) -> DataFrame:  # noqa: ANN401
        grouped = prepare(frames[0]).groupBy(*by)
        return grouped.applyInPandasWithState(function, "seen string", state, "Update", time_out)

    def keyed(frames: Any) -> DataFrame:  # noqa: ANN401
        stream = ckpt.keyed(prepare(frames[0]), by, uid="it")
        return stream.apply_in_pandas_with_state(function, "seen string", state, "Update", time_out)

    queries: tuple[Query, Query] = (native, keyed)
    expected, actual = (play(spark, query, source, folder / str(n)) for n, query in enumerate(queries))
    assert sum(map(len, expected.values())) > 10
    return expected, actual


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("function", "state"),
    [
        (_see_all, "frames long, text string"),
        (
            _keep_kinds,
            _KINDS,
        ),
        (_stamped, "at timestamp, day date"),
        (_mixed, _MIXED),
    ],
)
def test_frames_keys_and_states_are_those_of_spark(
    function: Any,  # noqa: ANN401
    state: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    expected, actual = both(spark, tmp_path, _EVENTS, ("user", "word"), function, state)
    for batch_id, rows in expected.items():
        assert actual[batch_id] == rows


def test_frames_of_every_type_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = inputs.kinds(seed=61)
    expected, actual = both(spark, tmp_path, source, ("c_int",), _see_all, "frames long, text string")
    assert actual == expected


def test_time_outs_come_when_they_come_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    expected, actual = both(
        spark,
        tmp_path,
        _EVENTS,
        ("user",),
        _until_silent,
        StructType().add("rows", LongType()),
        GroupStateTimeout.EventTimeTimeout,
        lambda frame: frame.withWatermark("at", "5 minutes"),
    )
    assert actual == expected
    assert sum("True" in line for lines in expected.values() for line in lines) > 5


def test_time_outs_in_processing_time_come_when_they_come_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    users = Source("user int", (((1,), (2,), (2,), (3,)), ((1,), (3,))))
    arguments = _until_idle, "user int, told string", "rows long, due_ms long", "update", "ProcessingTimeTimeout"

    def told_by(query: Query, folder: Path) -> Mapping[int, list[str]]:
        """What the groups of each user have told in order; when all is silent, the query starts again with new rows."""
        case, batches = Case(query, (users,), output_mode="update"), {}

        def collect(frame: DataFrame, batch_id: int) -> None:
            batches[batch_id] = frame.collect()

        for files, most in ((1, 6), (2, 9)):
            write_inputs(case, folder, files - 1, files)
            done = partial(lambda most: sum(map(len, batches.values())) == most, most)
            play_until(done, OURS.session(spark), case, folder, collect)
        told = defaultdict(list)
        for row in chain.from_iterable(batches.values()):
            told[row.user].append(row.told)
        return told

    expected = told_by(lambda frames: frames[0].groupBy("user").applyInPandasWithState(*arguments), tmp_path / "native")
    assert {user: len(each) for user, each in expected.items()} == {1: 4, 2: 3, 3: 2}
    keyed = told_by(
        lambda frames: ckpt.keyed(frames[0], "user", uid="it").apply_in_pandas_with_state(*arguments),
        tmp_path / "keyed",
    )
    assert keyed == expected


def _bad(what: Any) -> Any:  # noqa: ANN401
    def function(_key: Any, _frames: Any, _state: GroupState) -> Any:  # noqa: ANN401
        return what()

    return function


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda: pd.DataFrame({"seen": ["x"]}), "returned DataFrame, not an iterable of pandas.DataFrame"),
        (lambda: 5, "returned int, not an iterable of pandas.DataFrame"),
        (lambda: iter([5]), "yielded int, not a pandas.DataFrame"),
        (lambda: iter([pd.DataFrame({"a": [1], "b": [2]})]), "yielded a frame of 2 columns, but the output has 1"),
    ],
)
def test_what_a_function_may_not_give_fails_the_query_with_what_is_wrong(
    what: Any,  # noqa: ANN401
    text: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    def keyed(frames: Any) -> DataFrame:  # noqa: ANN401
        stream = ckpt.keyed(frames[0], "user", uid="it")
        return stream.apply_in_pandas_with_state(_bad(what), "seen string", "n long", "update", "NoTimeout")

    with pytest.raises(StreamingQueryException, match=text):
        play(spark, keyed, _EVENTS, tmp_path)


def test_a_value_that_the_state_cannot_hold_fails_the_query_with_the_state_its_type_and_the_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    def overflow(_key: Any, _frames: Any, state: GroupState) -> Any:  # noqa: ANN401
        state.update((1 << 40,))
        return iter(())

    def keyed(frames: Any) -> DataFrame:  # noqa: ANN401
        stream = ckpt.keyed(frames[0], "user", uid="it")
        return stream.apply_in_pandas_with_state(overflow, "seen string", "n int", "update", "NoTimeout")

    named = "State 'state': its field 'n' of type int32 cannot hold 1099511627776 of type int"
    with pytest.raises(StreamingQueryException, match=named):
        play(spark, keyed, _EVENTS, tmp_path)


def test_bad_arguments_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    stream = ckpt.keyed(_EVENTS.stream(spark, tmp_path), "user", uid="it")
    with pytest.raises(InvalidInputError, match="the timeoutConf is 'soon', not one of"):
        stream.apply_in_pandas_with_state(_see_all, "seen string", "n long", "update", "soon")
    with pytest.raises(InvalidInputError, match="the state has the type 'long'"):
        stream.apply_in_pandas_with_state(_see_all, "seen string", "long", "update", "NoTimeout")
    with pytest.raises(InvalidInputError, match="the output has the type 'nonsense!'"):
        stream.apply_in_pandas_with_state(_see_all, "nonsense!", "n long", "update", "NoTimeout")
