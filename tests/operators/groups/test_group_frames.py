"""Frames that a function returned are put together as pandas would."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType, TimestampType

from pyspark_ckpt.operators.groups.frames import Conversion, ReturnedFrames

KINDS: dict[str, Callable[[int], pd.DataFrame]] = {
    "integers": lambda n: pd.DataFrame({"key": [n], "rows": [n]}),
    "small integers": lambda n: pd.DataFrame({"key": [n], "rows": [n]}, dtype="int16"),
    "floats": lambda n: pd.DataFrame({"key": [n, n], "rows": [n / 2, None]}),
    "another order": lambda n: pd.DataFrame({"rows": [n], "key": [n]}),
    "numbers for names": lambda n: pd.DataFrame([[n, n + 1]]),
    "strings": lambda n: pd.DataFrame({"key": [str(n)] * 3, "rows": [None, str(n), ""]}),
    "own strings": lambda n: pd.DataFrame({"key": [str(n)], "rows": ["b"]}, dtype="string"),
    "times": lambda n: pd.DataFrame({"key": [pd.Timestamp(n, tz="UTC")], "rows": [pd.Timedelta(n)]}),
    "local times": lambda n: pd.DataFrame({"key": [pd.Timestamp(n)], "rows": [pd.Timestamp(n + 1)]}),
    "own integers": lambda n: pd.DataFrame({"key": [n, None], "rows": [True, None]}).astype({"key": "Int64"}),
    "categories": lambda n: pd.DataFrame({"key": pd.Categorical(["a" if n % 2 else "b"], ["a", "b"]), "rows": [n]}),
    "lists": lambda n: pd.DataFrame({"key": [[n]], "rows": [{"n": n}]}),
    "an index": lambda n: pd.DataFrame({"key": [n], "rows": [n]}, index=[n + 7]),
    "a slice": lambda n: pd.DataFrame({"key": np.arange(n, n + 9), "rows": 1.5})[3:5],
}
"""No column is all null: which kind of null pandas then has follows from what is beside it. Arrow has but one."""


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 3)), min_size=1, max_size=12))
@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning")
def test_frames_are_what_pandas_makes_of_them(kinds: list[tuple[str, int]]) -> None:
    frames = [KINDS[kind](number) for kind, times in kinds for number in range(times)]
    returned = ReturnedFrames()
    for _ in range(2):  # and nothing is left of those before
        for frame in frames:
            returned.add(frame)
        assert len(returned) == len(frames)
        alike = [list(some) for _, some in groupby(frames, key=lambda frame: list(frame.columns))]
        for frame, some in zip(returned.take(), alike, strict=True):
            pd.testing.assert_frame_equal(frame, pd.concat(some, ignore_index=True))
        assert len(returned) == 0


def test_a_name_may_stand_twice() -> None:
    frames = [pd.DataFrame([[n, n / 2]], columns=["key", "key"]) for n in range(3)]
    returned = ReturnedFrames()
    for frame in frames:
        returned.add(frame)
    (frame,) = returned.take()
    pd.testing.assert_frame_equal(frame, pd.concat(frames, ignore_index=True))


def test_columns_with_numbers_for_names_are_not_those_with_names() -> None:
    """Spark takes the former by their places."""
    returned = ReturnedFrames()
    returned.add(KINDS["integers"](1))
    returned.add(KINDS["numbers for names"](2))
    assert [frame.to_numpy().tolist() for frame in returned.take()] == [[[1, 1]], [[2, 3]]]


def test_instants_in_frames_are_local_times_of_the_session() -> None:
    instants = pa.array([0, 1], pa.timestamp("us", "UTC"))
    deep = pa.StructArray.from_arrays([instants], ["at"])
    how = Conversion("America/New_York", False, True, False, False, 10)
    frame = how.to_frame(pa.table({"at": instants, "deep": deep}))
    local = pd.Timestamp("1969-12-31 19:00:00")
    assert frame["at"].tolist() == [local, local + pd.Timedelta(microseconds=1)]
    assert frame["deep"].tolist() == [{"at": each} for each in frame["at"]]
    assert how.to_rows(frame[["at"]], StructType().add("at", TimestampType())).column(0).cast("int64").to_pylist() == [
        0,
        1,
    ]
