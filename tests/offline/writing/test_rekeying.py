"""An operator gets another key, and its program goes on with the states of the keys as they are called now."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing, writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.writing import dry_run, write_state
from tests.offline.writing.test_written_states import DAY, NAMES, NOW, UID, Kinds, _read, saved  # noqa: F401 - a fixture

KEY = "number bigint, side string"


def _split(rows: pa.Table) -> pa.Table:
    """``user 7`` becomes (7, "odd")."""
    users = pc.struct_field(rows["key"], "user")
    numbers = pc.cast(pc.utf8_slice_codeunits(users, 5), pa.int64())
    sides = pc.if_else(pc.equal(pc.bit_wise_and(numbers, 1), 1), "odd", "even")
    return rows.drop_columns(["key"]).append_column("number", numbers).append_column("side", sides)


class Sides(Kinds):
    """The same program with the new key."""

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Shows what it has of a key."""
        yield key.number, f"{len(rows)} {self.n.value()} {len(list(self.seen.get()))} {self.most.get()}"

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        """Shows when it fires."""
        yield key.number, f"{timer.at_ms}"


REKEY = writing.ReKey(UID, KEY, _split)


def test_every_state_of_keys_has_the_new_key(saved: Path, tmp_path: Path) -> None:  # noqa: F811
    write_state(saved, tmp_path / "target", [REKEY])
    for name in NAMES:
        before, after = _read(saved, name), _read(tmp_path / "target", name)
        assert after.schema.field("key").type == pa.struct([("number", pa.int64()), ("side", pa.string())])
        others = [column for column in before.column_names if column != "key"]
        assert sorted(map(repr, _rows(_split(before), others))) == sorted(map(repr, _rows(after, others))), name
        assert len(before) > 10
    counts = {row["key"]["number"]: row["value"] for row in _read(tmp_path / "target", "n").to_pylist()}
    lists = _read(tmp_path / "target", "seen").to_pylist()
    most = {row["key"]["number"]: row["value"] for row in _read(tmp_path / "target", "most").to_pylist()}
    stream = testing.keyed(
        "number bigint, side string", by=["number", "side"], uid=UID, parallelism=4, savepoint=tmp_path / "target"
    )
    with stream.process(Sides(), "number bigint, what string") as harness:
        number = next(iter(counts))
        shown = harness.run([(number, "odd" if number % 2 else "even"), (number, "neither")])
        items = sum(row["key"]["number"] == number for row in lists)
        assert sorted(shown) == sorted([(number, f"1 {counts[number]} {items} {most[number]}"), (number, "1 0 0 None")])
        assert len(harness.advance_processing_time(DAY * 365 * 100)) > 100


def _rows(table: pa.Table, others: list[str]) -> list[Any]:
    if "key" in table.column_names:
        keys = [tuple(key.values()) for key in table["key"].to_pylist()]
    else:
        keys = list(zip(table["number"].to_pylist(), table["side"].to_pylist(), strict=True))
    return list(zip(keys, table.select(others).to_pylist(), strict=True))


def test_changes_before_and_after_it_are_made_with_their_keys(saved: Path, tmp_path: Path) -> None:  # noqa: F811
    first = pa.table({"key": [{"user": "user 1"}, {"user": "user 2"}], "value": [1, 2]})
    more = pa.table({"number": [1], "side": ["odd"], "value": ["new"]})
    doubled = writing.Transform(
        UID, "n", lambda rows: rows.set_column(rows.column_names.index("value"), "value", pc.multiply(rows["value"], 2))
    )
    put = writing.Put(UID, ckpt.ValueState("more", "string"), more)
    write_state(saved, tmp_path / "target", [writing.Put(UID, "n", first), doubled, REKEY, doubled, put])
    assert {row["key"]["number"]: row["value"] for row in _read(tmp_path / "target", "n").to_pylist()} == {1: 4, 2: 8}
    assert _read(tmp_path / "target", "more").to_pylist() == [{"key": {"number": 1, "side": "odd"}, "value": "new"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            writing.ReKey(UID, "side string", lambda rows: _split(rows).drop_columns(["number"])),
            "two keys become one, .'side'",
        ),
        (writing.ReKey(UID, KEY, lambda rows: _split(rows).drop_columns(["former_key"])), "changed or removed the"),
        (writing.ReKey(UID, "number bigint", lambda rows: rows), "its keys have the columns .'number'"),
        (writing.ReKey(UID, "number double precision", _split), "key"),
        (writing.ReKey(UID, "m map<string,int>", _split), "key"),
        (writing.ReKey(UID, KEY, None), "function of a ReKey is None"),  # type: ignore[arg-type]
        (writing.ReKey("other", KEY, _split), "no keyed operator with the uid 'other'"),
        (writing.Put(UID, "n", pa.table({"number": [1]}), key="number bigint"), "Change the key by ReKey"),
    ],
)
def test_keys_that_do_not_fit_are_refused(change: Any, said: str, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401,F811
    with pytest.raises(InvalidInputError, match=said):
        write_state(saved, tmp_path / "target", [change])


STATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "value": (ckpt.ValueState("a", "long"), {"value": [1]}),
    "other value": (ckpt.ValueState("b", "long"), {"value": [2]}),
    "entry": (ckpt.MapState("c", "string", "long"), {"map_key": ["x"], "value": [3]}),
    "other entry": (ckpt.MapState("c", "string", "long"), {"map_key": ["y"], "value": [4]}),
    "element": (ckpt.ListState("d", "long"), {"index": [0], "value": [5]}),
    "later element": (ckpt.ListState("d", "long"), {"index": [7], "value": [6]}),
    "timer": (ckpt.Timers("e", clock="processing"), {"at": [NOW]}),
    "later timer": (ckpt.Timers("e", clock="processing"), {"at": [NOW + DAY]}),
}
"""Rows of one key, which do not meet each other."""


def _lower(rows: pa.Table) -> pa.Table:
    rows = rows.sort_by("former_key")
    return rows.drop_columns(["key"]).append_column("user", pc.utf8_lower(pc.struct_field(rows["key"], "user")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("value", "value"),
        ("value", "other value"),
        ("value", "entry"),
        ("entry", "other entry"),
        ("element", "later element"),
        ("timer", "later timer"),
        ("timer", "element"),
    ],
)
def test_two_keys_never_become_one(one: str, other: str, tmp_path: Path) -> None:
    of_state: dict[str, tuple[Any, list[pa.Table]]] = {}
    for user, name in (("A", one), ("a", other)):
        state, columns = STATES[name]
        rows = pa.table({"user": [user], **columns})
        of_state.setdefault(state.name, (state, []))[1].append(rows)
    put = [writing.Put(UID, state, pa.concat_tables(rows), key="user string") for state, rows in of_state.values()]
    write_state(None, tmp_path / "saved", put, parallelism=2)
    rekey = writing.ReKey(UID, "user string", _lower)
    for call in (dry_run, lambda source, given: write_state(source, tmp_path / "target", given)):
        with pytest.raises(InvalidInputError, match=r"two keys become one, \{'user': 'a'\}"):
            call(tmp_path / "saved", [rekey])
    delete(str(tmp_path / "target"), parse({}))  # as the error says, also what was written of the keys
    assert [path for path in (tmp_path / "target").rglob("*") if path.is_file()] == []


def test_keys_that_stay_apart_may_come_in_many_batches_and_lose_rows(tmp_path: Path) -> None:
    count = 20_000
    users = [f"User {n}" for n in range(count)]
    values = pa.table({"user": users, "value": range(count)})
    entries = pa.table({"user": users + users, "map_key": [0] * count + [1] * count, "value": range(2 * count)})
    states = ckpt.ValueState("a", "long"), ckpt.MapState("b", "int", "long")
    put = [writing.Put(UID, *each, key="user string") for each in zip(states, (values, entries), strict=True)]

    def fewer(rows: pa.Table) -> pa.Table:
        return _lower(rows.filter(pc.not_equal(pc.bit_wise_and(rows["value"], 3), 0)))

    write_state(None, tmp_path / "saved", put, parallelism=2)
    write_state(tmp_path / "saved", tmp_path / "target", [writing.ReKey(UID, "user string", fewer)])
    assert sorted(_read(tmp_path / "target", "a")["value"].to_pylist()) == [n for n in range(count) if n % 4]
    assert len(_read(tmp_path / "target", "b")) == 2 * count * 3 // 4


def test_a_key_of_another_batch_is_found(tmp_path: Path) -> None:
    count = 20_000
    values = pa.table({"user": [f"User {n}" for n in range(count)] + ["user 17"], "value": range(count + 1)})
    put = writing.Put(
        UID, ckpt.MapState("b", "long", "long"), values.add_column(1, "map_key", values["value"]), "user string"
    )
    write_state(None, tmp_path / "saved", [put], parallelism=2)
    with pytest.raises(InvalidInputError, match=r"two keys become one, .'user': 'user 17'"):
        write_state(tmp_path / "saved", tmp_path / "target", [writing.ReKey(UID, "user string", _lower)])


def test_functions_get_what_open_state_shows_also_of_rows_of_others(saved: Path, tmp_path: Path) -> None:  # noqa: F811
    """Flat keys, and numbers of another type, do not reach the next function."""
    notes = tmp_path / "notes"
    notes.mkdir()

    def watch(name: str) -> writing.Transform:
        def note(rows: pa.Table) -> pa.Table:
            (notes / f"{name}-{uuid.uuid4().hex}").write_bytes(rows.schema.serialize().to_pybytes())
            return rows

        return writing.Transform(UID, name, note)

    def shown(name: str) -> list[pa.Schema]:
        return [pa.ipc.read_schema(pa.py_buffer(path.read_bytes())) for path in notes.glob(f"{name}-*")]

    write_state(saved, tmp_path / "target", [REKEY, *map(watch, NAMES)])
    for name in NAMES:
        with open_state(tmp_path / "target", uid=UID, state=name) as state:
            assert set(shown(name)) == {state.schema}, name
    flat = pa.table({"user": ["user 1"], "value": pa.array([7], pa.int8())})
    put: list[writing.Change] = [writing.Put(UID, "n", flat), REKEY, watch("n")]
    for path in notes.iterdir():
        path.unlink()
    write_state(saved, tmp_path / "put", put)
    with open_state(tmp_path / "put", uid=UID, state="n") as state:
        assert set(shown("n")) == {state.schema}, "also in the first look at the rows"
        assert state.to_arrow().to_pylist()[0]["key"] == {"number": 1, "side": "odd"}
