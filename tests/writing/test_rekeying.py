"""An operator gets another key, and its program goes on with the states of the keys as they are called now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import changes, testing, write_state
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.writing.test_written_states import DAY, NAMES, UID, Kinds, _read, saved  # noqa: F401 - a fixture

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


REKEY = changes.ReKey(UID, KEY, _split)


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
    doubled = changes.Transform(
        UID, "n", lambda rows: rows.set_column(rows.column_names.index("value"), "value", pc.multiply(rows["value"], 2))
    )
    put = changes.Put(UID, ckpt.ValueState("more", "string"), more)
    write_state(saved, tmp_path / "target", [changes.Put(UID, "n", first), doubled, REKEY, doubled, put])
    assert {row["key"]["number"]: row["value"] for row in _read(tmp_path / "target", "n").to_pylist()} == {1: 4, 2: 8}
    assert _read(tmp_path / "target", "more").to_pylist() == [{"key": {"number": 1, "side": "odd"}, "value": "new"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changes.ReKey(UID, "side string", lambda rows: _split(rows).drop_columns(["number"])), "places|two rows are"),
        (changes.ReKey(UID, "number bigint", lambda rows: rows), "its keys have the columns .'number'"),
        (changes.ReKey(UID, "number double precision", _split), "key"),
        (changes.ReKey(UID, "m map<string,int>", _split), "key"),
        (changes.ReKey(UID, KEY, None), "function of a ReKey is None"),  # type: ignore[arg-type]
        (changes.ReKey("other", KEY, _split), "no keyed operator with the uid 'other'"),
        (changes.Put(UID, "n", pa.table({"number": [1]}), key="number bigint"), "Change the key by ReKey"),
    ],
)
def test_keys_that_do_not_fit_are_refused(change: Any, said: str, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401,F811
    with pytest.raises(InvalidInputError, match=said):
        write_state(saved, tmp_path / "target", [change])
