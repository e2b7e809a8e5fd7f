"""Written state is what was given: as it is read, as bytes, and as a program finds it."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing, writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.writing import write_state
from tests.compat.frozen import unpack

DAY = dt.timedelta(days=1)
OUTPUT = "user string, n long"
UID = "test"
NOW = dt.datetime(2100, 5, 1, tzinfo=dt.timezone.utc)
PLACE = ["partition", "key_group", "hash"]


class Kinds(ckpt.KeyedProcessor):
    """Every kind of state that belongs to keys, with and without a time to live."""

    n = ckpt.ValueState("n", "long", default=0)
    pair = ckpt.ValueState("pair", "struct<a: string, b: decimal(10, 2)>", ttl=ckpt.Ttl(DAY))
    seen = ckpt.ListState("seen", "string")
    recent = ckpt.ListState("recent", "long", ttl=ckpt.Ttl(DAY, "on_read_and_write"))
    by_day = ckpt.MapState("by_day", "date", "double")
    lately = ckpt.MapState("lately", "string", "array<int>", ttl=ckpt.Ttl(DAY))
    most = ckpt.ReducingState("most", "long", "max")
    due = ckpt.Timers("due", clock="processing")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.n.update(self.n.value() + row.n)
            self.pair.update((key.user, row.n))
            self.seen.add(f"{row.n}")
            self.recent.add(row.n)
            self.by_day.put(dt.date(2026, 1, 1 + row.n % 28), row.n / 3)
            self.lately.put(f"{row.n % 3}", [row.n, None])
            self.most.add(row.n)
            self.due.register(NOW + dt.timedelta(minutes=row.n, microseconds=row.n % 2), namespace="x" * (row.n % 3))
        yield key.user, self.n.value()

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, timer.at_ms


NAMES = ("n", "pair", "seen", "recent", "by_day", "lately", "most", "due")


def _harness(parallelism: int = 2, **more: Any) -> testing.Harness:  # noqa: ANN401
    stream = testing.keyed("user string, n int", by="user", uid=UID, parallelism=parallelism, **more)
    return stream.process(Kinds(), OUTPUT)


def _read(location: Path, name: str, uid: str = UID) -> pa.Table:
    with open_state(location, uid=uid, state=name) as state:
        table = state.to_arrow().drop_columns(PLACE)
    return table.take(pa.array(sorted(range(len(table)), key=list(map(repr, table.to_pylist())).__getitem__)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical savepoint of a program that has run."""
    folder = tmp_path_factory.mktemp("saved") / "saved"
    choose = random.Random(7)
    with _harness() as harness:
        for _ in range(3):
            harness.run([(f"user {choose.randrange(40)}", choose.randrange(60)) for _ in range(100)])
            harness.advance_processing_time(dt.timedelta(seconds=1))
        harness.savepoint(folder, kind="canonical")
    return folder


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_bytes_are_those_that_the_program_wrote_when_its_rows_are_put_back(
    kind: Any,  # noqa: ANN401
    saved: Path,
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    restore(saved, tmp_path / "query", parallelism=3)
    before = savepoint(tmp_path / "query", source, kind=kind, digests=True)
    put = [writing.Put(UID, name, _read(source, name)) for name in NAMES]
    after = write_state(source, target, put)
    (operator,) = before.operators
    old = before.digests_of(operator.number, "default")
    (rows,) = after.rows
    for name in set(old) - {"default"}:
        if not name.startswith(f"{UID}/recent"):  # its elements have no spans
            assert rows.digests[name] == old[name], name
    for name in NAMES:
        assert _read(target, name) == _read(source, name)
    assert sum(each.rows for each in rows.digests.values()) > 500
    assert after.version == before.version
    assert after.query_id == before.query_id


def test_a_program_goes_on_with_state_that_was_written_for_it(saved: Path, tmp_path: Path) -> None:
    put = [
        writing.Put(UID, getattr(Kinds, name), _read(saved, name), key="user string" if name == "n" else None)
        for name in NAMES
    ]
    write_state(None, tmp_path / "written", put, parallelism=5)
    rows = [(f"user {n % 50}", n) for n in range(70)]
    ends: list[Any] = []
    for origin in (saved, tmp_path / "written"):
        with _harness(3, savepoint=origin) as harness:
            first = sorted(harness.run(rows))
            timers = sorted(map(repr, harness.advance_processing_time(NOW + dt.timedelta(minutes=30))))
            ends.append((first, harness.states(), timers))
            assert len(timers) > 20
    (first, states, timers), (first_again, states_again, timers_again) = ends
    assert first == first_again
    for name in NAMES:
        assert states.get(name) == states_again.get(name), name
    assert timers == timers_again


def test_rows_expire_when_their_time_has_come(saved: Path, tmp_path: Path) -> None:
    late = pa.table(
        {
            "user": ["old", "new", "never"],
            "value": pa.array([("a", 1), ("b", 2), ("c", 3)], _value_type(saved, "pair")),
            "written_at": pa.array([NOW - 2 * DAY, NOW, None], pa.timestamp("us", "UTC")),
        }
    )
    lists = pa.table(
        {
            "user": ["old", "old", "new"],
            "index": [0, 1, 0],
            "value": [1, 2, 3],
            "written_at": pa.array([NOW - 2 * DAY, NOW, NOW], pa.timestamp("us", "UTC")),
        }
    )
    write_state(saved, tmp_path / "target", [writing.Put(UID, "pair", late), writing.Put(UID, "recent", lists)])
    with _harness(savepoint=tmp_path / "target") as harness:
        harness.advance_processing_time(NOW)
        assert set(harness.states()["pair"]) == {("new",), ("never",)}
        assert harness.states()["recent"] == {("old",): [2], ("new",): [3]}
        harness.advance_processing_time(NOW + 2 * DAY)
        assert set(harness.states()["pair"]) == {("never",)}
        assert harness.states()["recent"] == {}
        for name in ("pair", "recent"):  # freed, not only hidden
            with open_state(harness.checkpoint, uid=UID, state=name) as state:
                assert [row["key"]["user"] for row in state.to_arrow().to_pylist()] == ["never"] * (name == "pair")


class Plain(ckpt.KeyedProcessor):
    """A number without a time to live."""

    n = ckpt.ValueState("n", "long")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        for row in rows:
            self.n.update(row.n)


class Living(Plain):
    """The same number, which lives for a day of event time from now on."""

    n = ckpt.ValueState("n", "long", ttl=ckpt.Ttl(DAY, clock="event"))


def test_lives_go_on_as_they_were_when_rows_are_put_back(tmp_path: Path) -> None:
    """A row may have a time, wait for the first watermark, or be older than the lives of its state."""

    def open_harness(processor: Plain, origin: Path | None) -> testing.Harness:
        columns, watermark = "user string, n long, at timestamp", ("at", "0 seconds")
        stream = testing.keyed(columns, by="user", uid=UID, watermark=watermark, savepoint=origin)
        return stream.process(processor, OUTPUT)

    with open_harness(Plain(), None) as harness:
        harness.run([("old", 1, NOW)])
        harness.savepoint(tmp_path / "old", kind="canonical")
    with open_harness(Living(), tmp_path / "old") as harness:
        harness.run([("timed", 2, NOW)])
        harness.savepoint(tmp_path / "timed", kind="canonical")
    with open_harness(Living(), None) as harness:
        harness.run([("waits", 3, NOW)])
        harness.savepoint(tmp_path / "waits", kind="canonical")
    for name in ("timed", "waits"):
        same = writing.Transform(UID, "n", lambda rows: rows)
        before = write_state(tmp_path / name, tmp_path / f"{name}-copied", [])
        after = write_state(tmp_path / name, tmp_path / f"{name}-again", [same])
        assert before.rows[0].digests == after.rows[0].digests
    with open_harness(Living(), tmp_path / "timed-again") as harness:
        for day in range(1, 5):
            harness.run([("other", 0, NOW + day * DAY)])
        assert ("old",) in harness.states()["n"]
        assert ("timed",) not in harness.states()["n"]


class Events(ckpt.KeyedProcessor):
    """States that live for a day of event time: a row shows what they hold as of its time."""

    n = ckpt.ValueState("n", "long", ttl=ckpt.Ttl(DAY, clock="event"))
    seen = ckpt.ListState("seen", "long", ttl=ckpt.Ttl(DAY, clock="event"))
    words = ckpt.MapState("words", "string", "long", ttl=ckpt.Ttl(DAY, clock="event"))

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            yield key.user, str((self.n.value(), list(self.seen.get()), dict(self.words.items())))
            if row.n:
                self.n.update(row.n)


def _begin_with(users: list[str], life: dict[str, Any], target: Path) -> testing.Harness:
    """Begin a query with rows of ``users`` in each state of Events: the first has 1, the next one 2, and so on."""
    count = len(users)
    numbers = {"user": users, "value": range(1, count + 1), **life}
    rows = {"n": numbers, "seen": {**numbers, "index": [0] * count}, "words": {**numbers, "map_key": ["a"] * count}}
    put = [
        writing.Put(UID, getattr(Events, name), pa.table(columns), key="user string" if name == "n" else None)
        for name, columns in rows.items()
    ]
    write_state(None, target, put, parallelism=1)
    stream = testing.keyed(
        "user string, n long, at timestamp", "user", uid=UID, watermark=("at", "0 seconds"), savepoint=target
    )
    return stream.process(Events(), "user string, told string", "append")


def _show_each(harness: testing.Harness, users: list[str], n: int, days: float) -> list[str]:
    """Give each user a row with the number ``n``, so many days after NOW. Return what there was."""
    told = dict(harness.run([(user, n, NOW + days * DAY) for user in users]))
    return [told[user] for user in users]


ONE, NONE = "(1, [1], {'a': 1})", "(None, [], {})"


def test_written_rows_live_by_event_time_from_the_time_that_they_were_given(tmp_path: Path) -> None:
    users = ["timed", "never", "later"]
    never, later = "(2, [2], {'a': 2})", "(3, [3], {'a': 3})"
    given = {"written_at": pa.array([NOW, None, NOW + 3 * DAY], pa.timestamp("us", "UTC"))}
    with _begin_with(users, given, tmp_path / "written") as harness:
        assert _show_each(harness, users, 0, 0.5) == [ONE, never, later]
        assert _show_each(harness, users, 0, 1) == [NONE, never, later]
        _show_each(harness, users, 7, 2)
        assert _show_each(harness, users, 0, 3.5) == [
            NONE,
            "(None, [2], {'a': 2})",  # what is written has a life
            "(7, [3], {'a': 3})",  # a write of an earlier time does not shorten one
        ]
        for _ in range(3):
            found = _show_each(harness, users, 0, 6)
        assert found == [NONE, "(None, [2], {'a': 2})", NONE]
        with open_state(harness.checkpoint, uid=UID) as states:
            rows = {each.name.split("/")[-1]: each.rows for each in states.states}
        assert rows == {"n": 0, "seen": 2, "words": 1}, "what is dead is freed; a list has a head"


def test_the_lives_of_written_rows_begin_with_the_first_watermark_when_they_were_given_no_time(tmp_path: Path) -> None:
    with _begin_with(["a"], {}, tmp_path / "written") as harness:
        for days, told in ((0, ONE), (0.9, ONE), (1, NONE)):
            assert _show_each(harness, ["a"], 0, days) == [told], days


def _value_type(location: Path, name: str) -> pa.DataType:
    with open_state(location, uid=UID, state=name) as state:
        return state.schema.field("value").type


def test_states_are_dropped_renamed_and_transformed(saved: Path, tmp_path: Path) -> None:
    def double(rows: pa.Table) -> pa.Table:
        kept = rows.filter(pc.greater(rows["value"], 10))
        return kept.set_column(kept.column_names.index("value"), "value", pc.multiply(kept["value"], 2))

    info = write_state(
        saved,
        tmp_path / "target",
        [
            writing.Transform(UID, "n", double),
            writing.Transform(UID, "n", lambda rows: rows, ckpt.ValueState("n", "double")),
            writing.Drop(UID, "lately"),
            writing.Rename(UID, "words", "seen"),
            writing.SetMaxParallelism(UID, 64),
            writing.Rename(UID, "kinds"),
            writing.Put("kinds", ckpt.ValueState("more", "int"), pa.table({"user": ["x"], "value": [1]})),
        ],
    )
    expected = {row["key"]["user"]: 2.0 * row["value"] for row in _read(saved, "n").to_pylist() if row["value"] > 10}
    target = tmp_path / "query"
    restore(tmp_path / "target", target, parallelism=7)
    for where in (tmp_path / "target", target):
        assert {row["key"]["user"]: row["value"] for row in _read(where, "n", "kinds").to_pylist()} == expected
        assert _read(where, "words", "kinds") == _read(saved, "seen")
        assert _read(where, "due", "kinds") == _read(saved, "due")
        with open_state(where, uid="kinds") as state:
            assert {each.name for each in state.states} == {*NAMES, "words", "more"} - {"seen", "lately"}
            assert {each.descriptor.encoder["max_parallelism"] for each in state.states} == {64}
    (operator,) = info.operators
    assert operator.uids == ("kinds",)


def test_what_is_not_changed_stays_in_every_layout(tmp_path: Path) -> None:
    for name in ("join", "session-windows", "keyed", "with-states"):
        checkpoint = unpack("v1", name, tmp_path / name)
        before = savepoint(checkpoint, tmp_path / f"{name}-saved", kind="canonical")
        after = write_state(checkpoint, tmp_path / f"{name}-written", [])
        again = write_state(tmp_path / f"{name}-saved", tmp_path / f"{name}-again", [])
        for one, two, three in zip(before.rows, after.rows, again.rows, strict=True):
            old, new, newer = (
                {state: each for state, each in rows.digests.items() if each.rows} for rows in (one, two, three)
            )
            assert old == new == newer
            assert one.spark_rows == two.spark_rows == three.spark_rows
        restore(tmp_path / f"{name}-written", tmp_path / f"{name}-query", parallelism=3)


def test_states_of_partitions_and_broadcasts_are_written(tmp_path: Path) -> None:
    rules = ckpt.BroadcastState("rules", "string", "int")
    offsets = ckpt.OperatorListState("offsets", "long")
    write_state(
        None,
        tmp_path / "written",
        [
            writing.Put("a", rules, pa.table({"key": ["x", "y"], "value": [1, 2]}), key="user string"),
            writing.Put("a", offsets, pa.table({"partition": [0, 0, 1], "index": [0, 1, 0], "value": [7, 8, 9]})),
        ],
        parallelism=2,
    )
    restore(tmp_path / "written", tmp_path / "query", parallelism=2)
    for where in (tmp_path / "written", tmp_path / "query"):
        assert [(row["key"]["key"], row["value"]) for row in _read(where, "rules", "a").to_pylist()] == [
            ("x", 1),
            ("y", 2),
        ]
        found = _read(where, "offsets", "a").to_pylist()
        assert [(row["key"]["partition"], row["index"], row["value"]) for row in found] == [
            (0, 0, 7),
            (0, 1, 8),
            (1, 0, 9),
        ]


GOOD = pa.table({"user": ["a"], "value": [1]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (writing.Put(UID, "n", pa.table({"user": ["a", "a"], "value": [1, 2]})), "two rows are given for"),
        (
            writing.Put(UID, "n", pa.table({"user": ["a"], "value": pa.array([None], pa.int64())})),
            "a null in .*'value'",
        ),
        (writing.Put(UID, "n", pa.table({"user": ["a"], "value": ["x"]})), "does not fit the type int64"),
        (writing.Put(UID, "n", pa.table({"user": ["a"], "vale": [1]})), "a column 'vale'. Did you mean 'value'"),
        (writing.Put(UID, "n", pa.table({"user": ["a"]})), "has no column 'value'"),
        (writing.Put(UID, "seen", GOOD), "has no column 'index'"),
        (writing.Put(UID, "m", GOOD), "has no state 'm'"),
        (writing.Put("tset", "n", GOOD), "no keyed operator with the uid 'tset'.*Did you mean 'test'"),
        (writing.Put(UID, "n", 7), "Rows are given as 7"),
        (writing.Drop(UID, "m"), "has no state 'm'"),
        (writing.Rename(UID, "seen", "n"), "cannot become 'seen'"),
        (writing.SetMaxParallelism(UID, 0), "max_parallelism"),
        (writing.Transform(UID, "n", lambda _: 1), "returned 1 of type int"),
        ("drop n", "is not a change of state"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    change: Any,  # noqa: ANN401
    said: str,
    saved: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        write_state(saved, tmp_path / "target", [change])
    with pytest.raises(InvalidInputError):
        restore(tmp_path / "target", tmp_path / "query")


def test_rows_of_one_place_are_refused_when_they_come_in_batches_far_apart(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.offline.writing.tasks.RUN_BYTES", 1)
    batches = [pa.record_batch({"user": [user], "value": [1]}) for user in ("a", "b", "a")]
    with pytest.raises(InvalidInputError, match="3 rows were given for 2 places"):
        write_state(saved, tmp_path / "target", [writing.Put(UID, "n", batches)])
    lists = [pa.record_batch({"user": ["a"], "index": [index], "value": [f"{index}"]}) for index in (2, 0, 1)]
    write_state(saved, tmp_path / "lists", [writing.Put(UID, "seen", lists)])
    with open_state(tmp_path / "lists", uid=UID, state="seen") as state:
        assert state.get("a") == ["0", "1", "2"]
