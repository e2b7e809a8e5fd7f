"""What a harness refuses: rows and arguments that do not fit, and calls after it was closed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.testing.programs import AT, COLUMNS, OUTPUT, ROWS, Sessions, Totals, stream


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([("ada", "1", AT)], r"row 0: column 'n' is of type int64, but '1' is of type str"),
        ([("ada", 1, AT), ("ada", 1)], r"row 1: \('ada', 1\) does not fit the columns \['user', 'n', 'at'\]"),
        ([None], r"row 0: None does not fit"),
        ("ada", r"'ada' is not a sequence of rows"),
        (7, r"7 is not a sequence of rows"),
        (pd.DataFrame({"user": ["ada"], "m": [1]}), r"row 0: .* does not fit the columns"),
        (pd.DataFrame({"user": ["ada"]})["user"], r"is not a sequence of rows"),
        (pa.table([["a"], ["b"]], names=["user", "user"]), r"several columns of one name"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(rows: Any, problem: str) -> None:  # noqa: ANN401
    with stream().process(Totals(), OUTPUT) as harness:
        with pytest.raises(InvalidInputError, match=problem):
            harness.run(rows)
        assert harness.run(ROWS[:1]) == [("ada", 1)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"columns": "user strin"}, "which Spark cannot read: 'strin' is not a type"),
        ({"columns": "user varchar(3)"}, "which keyed operators do not take: .*in place of char and varchar"),
        ({"by": "usr"}, r"no columns \['usr'\] to key by.*Did you mean 'user'"),
        ({"watermark": ("n", "1 minute")}, "the event time 'n' is of type bigint; Spark takes only"),
        ({"watermark": "at"}, "must be a column and a delay, got 'at'"),
        ({"watermark": ("at", "1 parsec")}, "'1 parsec', which Spark does not read as an interval"),
        ({"columns": "user string, at timestamp_ntz", "watermark": ("at", "1 minute")}, "Spark takes only timestamps"),
        ({"conf": {"spark.sql.streaming.stateStore.ckpt.wrkerMemory": "1m"}}, "wrkerMemory"),
        ({"conf": {"spark.sql.shuffle.partitions": "3"}}, "is the parallelism of the harness"),
        ({"conf": "x"}, "conf must be a mapping"),
        ({"parallelism": 0}, "parallelism must be an integer, 1 to 32768, got 0"),
        ({"uid": ""}, "give a uid"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: Any, problem: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=problem):
        testing.keyed(**{"columns": COLUMNS, "by": "user", **arguments})


def test_what_a_query_refuses_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="declares event-time timers, but the frame has no watermark"):
        stream().process(Sessions(), OUTPUT)
    with stream().process(Totals(), OUTPUT) as harness:
        with pytest.raises(InvalidInputError, match=r"declares no state 'totl'.*Did you mean 'total'"):
            harness.state("totl")
        with pytest.raises(InvalidInputError, match="No input of the harness has a watermark"):
            harness.advance_watermark("1 minute")


def test_a_processor_that_cannot_be_copied_is_refused() -> None:
    class Locks(Totals):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(InvalidInputError, match=r"Locks cannot be copied to the workers: .*lock"):
        stream().process(Locks(), OUTPUT)


def test_a_closed_harness_says_so() -> None:
    harness = stream().process(Totals(), OUTPUT)
    harness.close()
    with pytest.raises(ckpt.LifecycleError, match="The harness is closed"):
        harness.run(ROWS)


def test_all_calls_of_a_closed_harness_say_so(tmp_path: Path) -> None:
    harness = stream(watermark=("at", "1 minute")).process(Sessions(), OUTPUT, "append")
    harness.run(ROWS)
    harness.close()
    harness.close()
    calls = (harness.run, harness.restart, harness.timers, harness.states, lambda: harness.state("rows"))
    for call in (*calls, lambda: harness.savepoint(tmp_path / "savepoint")):
        with pytest.raises(ckpt.LifecycleError, match="The harness is closed"):
            call()
