"""States of ours in a function that Spark's own applyInPandasWithState calls, one group after the other."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import EVENTS, play
from integration.operators.placement import partition_of, stored_rows
from integration.operators.providers import OURS, ROCKSDB
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.progress import recent_progress
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Lines, Query
    from pyspark_ckpt.operators.groups.with_states import GroupFunctionWithStates

_OUT = "user int, rows bigint, calls bigint, ids string, words string"


class Visits:
    """One state of every kind."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    calls = ckpt.ReducingState("calls", "bigint", "sum")
    ids = ckpt.ListState("ids", "bigint")
    words = ckpt.MapState("words", "string", "bigint")


def visit(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState, visits: Visits
) -> Iterator[pd.DataFrame]:
    """Keep in every state what has come, and what Spark's own state says in Spark's."""
    import pandas as pd

    visits.calls.add(1)
    for frame in frames:
        visits.rows.update(visits.rows.value() + len(frame))
        visits.ids.add_all(sorted(frame["id"].tolist()))
        for word in frame["word"].fillna("nothing"):
            visits.words.put(word, visits.words.get(word, 0) + 1)
    calls = state.get[0] + 1 if state.exists else 1
    state.update((calls,))
    assert calls == visits.calls.get(), "both are committed together"
    yield pd.DataFrame(
        {
            "user": [None if key[0] is None or key[0] != key[0] else int(key[0])],
            "rows": [visits.rows.value()],
            "calls": [visits.calls.get()],
            "ids": [str(list(visits.ids.get()))],
            "words": [str(list(visits.words.items()))],
        }
    )


def _grouped(function: Any, states: object, out: str, by: Sequence[str] = ("user",), **more: Any) -> Query:  # noqa: ANN401
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        called = ckpt.with_states(function, states, uid="visits")
        arguments = {"stateStructType": "calls bigint", "outputMode": "update", "timeoutConf": "NoTimeout", **more}
        return frames[0].groupBy(*by).applyInPandasWithState(called, out, **arguments)

    return query


def visited(frames: Sequence[DataFrame]) -> DataFrame:
    """Call ``visit`` for every user."""
    return _grouped(visit, Visits(), _OUT)(frames)


def test_states_of_every_kind_go_on_from_batch_to_batch_beside_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    batches = play(spark, visited, EVENTS, tmp_path)
    model: dict[int | None, list[list[tuple[Any, ...]]]] = {}
    for number, rows in enumerate(EVENTS.batches):
        expected = []
        for user in {row[1] for row in rows}:
            model.setdefault(user, []).append([row for row in rows if row[1] == user])
            expected.append(repr(_row_of(user, model[user])))
        assert list(batches[number]) == sorted(expected)


def _row_of(user: int | None, calls: list[list[tuple[Any, ...]]]) -> Row:
    rows = [row for call in calls for row in call]
    words = [row[2] if row[2] is not None else "nothing" for row in rows]
    counts = sorted(((word, words.count(word)) for word in set(words)), key=lambda entry: entry[0].encode())
    ids = [number for call in calls for number in sorted(row[0] for row in call)]
    return Row(user=user, rows=len(rows), calls=len(calls), ids=str(ids), words=str(counts))


_KEYS = [name for name in inputs.kinds(seed=5).schema.replace("<", " ").split() if name.startswith("c_")]


class Count:
    """How many rows a key has had."""

    rows = ckpt.ValueState("rows", "bigint", default=0)


def count_on(_key: Any, frames: Iterator[pd.DataFrame], _state: GroupState, count: Count) -> Iterator[pd.DataFrame]:  # noqa: ANN401
    import pandas as pd

    count.rows.update(count.rows.value() + sum(map(len, frames)))
    yield pd.DataFrame({"rows": [count.rows.value()]})


@pytest.mark.in_turn
@pytest.mark.parametrize("by", [_KEYS[first : first + 6] for first in range(0, len(_KEYS), 6)], ids="+".join)
def test_groups_of_every_type_have_states_of_their_own_where_spark_puts_them(
    by: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    source = inputs.kinds(seed=5)
    found = play(spark, _grouped(count_on, Count(), "rows bigint", by), source, tmp_path / "ours")
    native = play(
        spark,
        lambda frames: frames[0].groupBy(*by).agg(f.count("*").alias("rows")).select("rows"),
        source,
        tmp_path / "native",
    )
    assert found == native
    rows = list(stored_rows(tmp_path / "ours" / "checkpoint"))
    assert len({row.partition for row in rows}) == PARTITIONS
    assert all(partition_of(row.partition_hash, PARTITIONS) == row.partition for row in rows)


class Pauses:
    """When a user was here, which is forgotten a while later, and how often the user went away."""

    seen = ckpt.ListState("seen", "bigint", ttl=ckpt.Ttl("15 minutes", clock="event"))
    ends = ckpt.ValueState("ends", "bigint", default=0)


def pause(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState, pauses: Pauses
) -> Iterator[pd.DataFrame]:
    """Time out 10 minutes after the last row."""
    import pandas as pd

    if state.hasTimedOut:
        pauses.ends.update(pauses.ends.value() + 1)
        state.remove()
    else:
        frame = pd.concat(frames)
        pauses.seen.add_all(frame["id"].tolist())
        state.update((1,))
        last = int(frame["at"].max().timestamp() * 1000)
        state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs()) + 600_000)
    yield pd.DataFrame({"user": [key[0]], "ends": [pauses.ends.value()], "seen": [str(list(pauses.seen.get()))]})


def _minute(minutes: int) -> datetime:
    return inputs.START + timedelta(minutes=minutes)


_COMING_AND_GOING = Source(
    "id long, user int, at timestamp",
    (
        ((0, 1, _minute(0)), (1, 2, _minute(0))),
        ((2, 1, _minute(30)),),
        ((3, 1, _minute(32)),),  # user 2 has timed out
        ((4, 1, _minute(40)), (5, 2, _minute(40))),
        ((6, 3, _minute(90)),),
        # and a batch without rows: users 1 and 2 have timed out
    ),
)


def _timing_out(called: GroupFunctionWithStates, output: str) -> Query:
    """Calls a function for each user, and for those whose time in event time is over."""
    return lambda frames: (
        frames[0]
        .withWatermark("at", "1 minute")
        .groupBy("user")
        .applyInPandasWithState(called, output, "n int", "update", "EventTimeTimeout")
    )


def test_groups_that_have_timed_out_have_their_states_and_expired_rows_are_freed(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = _timing_out(ckpt.with_states(pause, Pauses(), uid="pauses"), "user int, ends bigint, seen string")
    case = Case(query, (_COMING_AND_GOING,), output_mode="update")
    write_inputs(case, tmp_path, 0, len(_COMING_AND_GOING.batches))
    batches: dict[int, Lines] = {}
    progresses = recent_progress(run(OURS.session(spark), case, tmp_path, collect_into(batches)))
    assert [
        [(row.user, row.ends, row.seen) for row in map(_parsed, batches[number])] for number in sorted(batches)
    ] == [
        [(1, 0, "[0]"), (2, 0, "[1]")],
        [(1, 0, "[0, 2]")],
        [(1, 0, "[3]"), (2, 1, "[1]")],  # the life of 1 begins with the first batch that its partition has rows in
        [(1, 0, "[3, 4]"), (2, 1, "[1, 5]")],
        [(3, 0, "[6]")],
        [(1, 1, "[]"), (2, 2, "[]")],
    ]
    operators = [progress.stateOperators[0] for progress in progresses]
    assert sum(operator.customMetrics["ckptExpiredRows"] for operator in operators) > 0
    kept = [row.key for row in stored_rows(tmp_path / "checkpoint")]
    assert len(kept) == operators[-1].numRowsTotal + operators[-1].customMetrics["ckptInternalRows"]


def test_a_time_to_live_in_event_time_is_refused_by_the_first_call_when_there_is_no_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(_grouped(pause, Pauses(), "user int, ends bigint, seen string"), (_COMING_AND_GOING,), "update")
    write_inputs(case, tmp_path, 0, 1)
    with pytest.raises(StreamingQueryException, match=r"State 'visits/seen' has a time .* the frame has no watermark"):
        run(OURS.session(spark), case, tmp_path, collect_into({}))


class Calls:
    """Which calls a group has had."""

    made = ckpt.ListState("made", "string")
    number = ckpt.ValueState("number", "bigint", default=0)


def note(
    _key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState, calls: Calls
) -> Iterator[pd.DataFrame]:
    """Set the time-out once, and leave it alone: a group whose time has come has its rows, and then times out."""
    import pandas as pd

    if state.hasTimedOut:
        state.remove()
    elif not state.exists:
        state.update((1,))
        state.setTimeoutTimestamp(int(next(frames)["at"].max().timestamp() * 1000) + 600_000)
    calls.made.add("timed out" if state.hasTimedOut else "rows")
    calls.number.update(calls.number.value() + 1)
    yield pd.DataFrame({"number": [calls.number.value()], "made": [", ".join(calls.made.get())]})


def test_a_group_that_has_rows_when_it_times_out_goes_on_from_what_these_have_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = _timing_out(ckpt.with_states(note, Calls(), uid="calls"), "number bigint, made string")
    case = Case(
        query, (Source("user int, at timestamp", tuple(((1, _minute(n)),) for n in (0, 30, 32, 33))),), "update"
    )
    write_inputs(case, tmp_path, 0, 4)
    batches: dict[int, Lines] = {}
    run(OURS.session(spark), case, tmp_path, collect_into(batches))
    both = "rows, rows, rows, timed out"
    assert [sorted((row.number, row.made) for row in map(_parsed, batches[number])) for number in range(4)] == [
        [(1, "rows")],
        [(2, "rows, rows")],
        [(3, "rows, rows, rows"), (4, both)],
        [(5, f"{both}, rows")],
    ]
    assert len(list(stored_rows(tmp_path / "checkpoint"))) == 1 + 1 + 5 + 1  # Spark's own, a value, elements, a head


def _parsed(line: str) -> Row:
    row: Row = eval(line, {"Row": Row})  # noqa: S307 - the text of a row
    return row


def test_a_function_that_gives_no_frames_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    def whole(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], _state: GroupState, _states: Pauses) -> Any:  # noqa: ANN401
        import pandas as pd

        return pd.DataFrame({"user": [key[0]], "ends": [sum(map(len, frames))], "seen": [""]})

    query = _timing_out(ckpt.with_states(whole, Pauses(), uid="pauses"), "user int, ends bigint, seen string")
    case = Case(query, (_COMING_AND_GOING,), "update")
    write_inputs(case, tmp_path, 0, 1)
    refused = r"The function 'whole' of with_states\(uid='pauses'\) returned DataFrame, not an iterable of pandas"
    with pytest.raises(StreamingQueryException, match=refused):
        run(OURS.session(spark), case, tmp_path, collect_into({}))


def test_states_are_refused_that_a_group_cannot_have(spark: SparkSession) -> None:  # noqa: ARG001 - types are read by it
    class Waits:
        wait = ckpt.Timers("wait", clock="event")

    class Counts:
        count = ckpt.MetricCounter("count")

    class Wrong:
        wrong = ckpt.ValueState("wrong", "varint")

    for states, uid, problem in (
        (Waits(), "it", "Timers 'wait' cannot be used"),
        (Counts(), "it", "Counter 'count' cannot be used"),
        (Wrong(), "it", "the value of state 'wrong' has the type 'varint'"),
        (object(), "it", "object declares no states"),
        (Visits(), "", "give a uid"),
        (Visits(), "a/b", "give a uid"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            ckpt.with_states(visit, states, uid=uid)


def test_a_query_on_another_state_store_is_refused_in_its_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(visited, (EVENTS,), output_mode="update")
    write_inputs(case, tmp_path, 0, 1)
    with pytest.raises(StreamingQueryException, match="has 0 tickets of the ckpt state store"):
        run(ROCKSDB.session(spark), case, tmp_path, collect_into({}))
