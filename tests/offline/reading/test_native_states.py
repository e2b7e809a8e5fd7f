"""States of Spark's own operators, in checkpoints that Spark has written (see tests/compat)."""

from __future__ import annotations

import json
import re
import struct
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    GeographyType,
    GeometryType,
)

import pyspark_ckpt
from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.rows.ordered_columns import read_ordered
from pyspark_ckpt.offline.reading.rows.state_codec import StoredRow
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.format.meta import Descriptor
from tests.compat.frozen import expected, unpack
from tests.compat.queries import KeyedKinds, Kinds

BEGIN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401
    unpacked: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in unpacked:
            unpacked[name] = str(unpack("v1", name, tmp_path_factory.mktemp("frozen") / name))
        return unpacked[name]

    return get


@pytest.mark.parametrize("name", ["aggregation", "aggregation-format-1"])
def test_an_aggregation_holds_what_it_has_shown(name: str, frozen: Any) -> None:  # noqa: ANN401
    shown: dict[str, str] = {}
    for _, lines in sorted(expected("v1")["queries"][name]["shown"].items()):
        shown.update((" | ".join(line.split(" | ")[:2]), line) for line in lines)
    with open_state(frozen(name)) as state:
        assert {each.kind for each in state.states} == {"spark"}
        rows = state.to_arrow().to_pylist()
        assert state.count() == len(rows) == len(shown)
        for row in rows:
            key, value = row["key"], row["value"]
            last = value["max"]
            word = "null" if last["word"] is None else last["word"]
            name_of = f"{key['user']} | {key['word']}"
            line = f"{name_of} | {value['count']} | {value['sum']} | {{{word}, {last['at']:%Y-%m-%d %H:%M:%S}}}"
            assert shown[name_of].startswith(line)
            found = state.get((key["user"], key["word"]))
            assert (found.count, found.sum) == (value["count"], value["sum"])
            assert state.rows_of(key).num_rows == 1
        assert state.get((77, "a")) is None


def test_a_key_of_session_windows_has_several_values(frozen: Any) -> None:  # noqa: ANN401
    with open_state(frozen("session-windows")) as state:
        for row in state.to_arrow().to_pylist():
            window = row["value"]["session_window"]
            assert (row["key"]["user"], row["key"]["sessionStartTime"]) == (row["value"]["user"], window["start"])
            assert [tuple(value.session_window) for value in state.get(row["key"]["user"])] == [
                (window["start"], window["end"])
            ]
            assert state.get(row["key"]).user == row["key"]["user"]


def test_the_stores_of_a_join_are_told_apart(frozen: Any) -> None:  # noqa: ANN401
    path = frozen("join")
    with open_state(path) as found:
        stores = {state.store: state.rows for state in found.states}
        assert set(stores.values()) == {24}
        with pytest.raises(pyspark_ckpt.InvalidInputError, match=r"4 states: .* store 'left-keyToNumValues'"):
            found.to_arrow()
    with open_state(path, store="left-keyWithIndexToValue") as state:
        assert state.get(21)[0].at == BEGIN + timedelta(minutes=10)
        assert state.get((21, 0)).value == 21
        assert state.get((21, 1)) is None
        with pytest.raises(pyspark_ckpt.InvalidInputError, match=r"'field0', 'index'.* but 3 values are given"):
            state.get((1, 2, 3))


def test_what_is_no_key_of_a_join_is_refused(frozen: Any) -> None:  # noqa: ANN401
    with open_state(frozen("join"), store="left-keyWithIndexToValue") as state:
        assert state.get({"field0": 21})[0] == state.get({"index": 0, "field0": 21})
        for names in (["index"], ["field0", "other"]):
            with pytest.raises(pyspark_ckpt.InvalidInputError, match=r"'field0', 'index'.* are given") as refused:
                state.get(dict.fromkeys(names, 21))
            assert refused.value.hint == "Give all of them, or those that place a key: ['field0']."
        for wrong in ("x", 0.0, 2**70):
            with pytest.raises(
                pyspark_ckpt.InvalidInputError, match=r"keys of field0 int64, index int64, .* does not fit"
            ):
                state.get((21, wrong))


def test_operators_are_told_apart_by_number(frozen: Any) -> None:  # noqa: ANN401
    path = frozen("deduplication-and-limit")
    with open_state(path, operator=0) as state:
        assert [row["value"] for row in state.to_arrow().to_pylist()] == [{"value": 24}]
        assert state.partitions == 1
    with open_state(path, operator=1) as state:
        assert state.get((1, "ä")) is not None
        assert state.get((1, "x")) is None
        assert len(state.to_pandas()) == 24
    with pytest.raises(pyspark_ckpt.InvalidInputError, match=r"no state for operator 7; there are: .*operator 1"):
        open_state(path, operator=7).to_arrow()


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "batch", "kinds"), [("keyed", "2", KeyedKinds()), ("with-states", "1", Kinds())])
def test_keyed_states_hold_what_their_program_has_shown(name: str, batch: str, kinds: Any, frozen: Any) -> None:  # noqa: ANN401
    """Of a release that stored no time to live: when rows were written is known, and not when they expire."""
    shown = dict(line.split(" | ", 1) for line in expected("v1")["queries"][name]["shown"][batch])
    for user, text in shown.items():
        found = {}
        for state_name in ("seen", "word", "recent", "touched", "names", "words", "days", "most", "mean"):
            with open_state(frozen(name), uid="kinds", state=state_name) as state:
                found[state_name] = state.get(int(user))
        assert text.endswith(
            repr(
                (
                    (found["seen"].rows, found["seen"].last.isoformat()),
                    *(found[each] for each in ("word", "recent", "touched", "names")),
                    list(found["words"].items()),
                    [(day.isoformat(), str(total)) for day, total in found["days"].items()],
                    found["most"],
                    kinds.mean.result(found["mean"]),
                )
            )
        )
    with open_state(frozen(name), uid="kinds", state="recent") as state:
        (row, *_) = state.to_arrow().to_pylist()
        assert row["written_at"] < BEGIN
        assert (row["expires_at"], state.state.ttl) == (None, None)
    with (
        open_state(frozen(name), uid="kinds", state="recent", include_expired=False) as state,
        pytest.raises(pyspark_ckpt.InvalidInputError, match="does not record the time to live"),
    ):
        state.to_arrow()


def test_a_version_that_is_not_there_is_refused_with_those_that_are(frozen: Any, tmp_path: Path) -> None:  # noqa: ANN401
    for version in (0, 9):
        with pytest.raises(pyspark_ckpt.InvalidInputError, match=f"no version {version}: there are 1 to 2"):
            open_state(frozen("aggregation"), version=version)
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="is not a checkpoint of a query"):
        open_state(str(tmp_path))
    with (
        open_state(frozen("aggregation")) as state,
        pytest.raises(pyspark_ckpt.InvalidInputError, match="0 to 1, not 2"),
    ):
        next(state.batches(2))


LONG = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
SHORT = {"name": "s", "type": "short", "nullable": True, "metadata": {}}
REAL = {"name": "f", "type": "double", "nullable": True, "metadata": {}}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def unsafe(*words: int | bytes) -> bytes:
    """An UnsafeRow of longs, followed by bytes."""
    fixed, behind, at = b"", b"", 8 * (1 + len(words))
    for word in words:
        if isinstance(word, int):
            fixed += struct.pack("<q", word)
        else:
            fixed += struct.pack("<Q", (at + len(behind)) << 32 | len(word))
            behind += word + bytes(-len(word) % 8)
    return bytes(8) + fixed + behind


def keys_of(encoder: dict[str, Any], fields: list[dict[str, Any]], key: bytes, *, multiple: bool = False) -> NativeRows:
    descriptor = Descriptor(
        key_schema=schema(*fields), value_schema=schema(LONG), key_encoder=encoder, multiple_values=multiple
    )
    return NativeRows(descriptor, "default", f"a state with {key.hex()}")


def test_keys_of_a_range_scan_are_in_the_order_of_their_own_columns() -> None:
    ordered = unsafe(b"\x00" + (-2).to_bytes(2, "big", signed=True), b"\x01" + struct.pack(">d", 0.5))
    key = struct.pack("<I", 1 + len(ordered)) + b"\x00" + ordered + b"\x00" + unsafe(77)
    encoder = {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [2, 0]}
    rows = keys_of(encoder, [REAL, LONG, SHORT], key)
    (column, _) = rows.decode([StoredRow(1, key, unsafe(3))]).columns
    assert python_values(column) == [(0.5, 77, -2)]
    assert rows.find_wanted((77,)).values == (77,)


def test_an_expiring_map_entry_is_looked_for_where_its_map_is() -> None:
    def struct_of(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
        return {**LONG, "name": name, "type": schema(*fields)}

    entry = struct_of("elementKey", struct_of("key", LONG), struct_of("userKey", LONG))
    descriptor = Descriptor(
        key_schema=schema({**LONG, "name": "expirationMs"}, entry),
        value_schema=schema(LONG),
        key_encoder={"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [0]},
        multiple_values=False,
    )
    of_map, of_other = (NativeRows(descriptor, name, "a state") for name in ("$ttl_words", "words"))
    hashes = [of_map.find_wanted((((5,), (number,)),)).hash for number in (6, 7)]
    assert hashes == [SparkHash([pa.int64()])([5])] * 2
    assert of_map.find_wanted((1, ((5,), (6,)))).hash == hashes[0]
    assert of_other.find_wanted((((5,), (6,)),)).hash != hashes[0]


def test_ordered_numbers_are_read_as_spark_writes_them() -> None:
    longs = [b"\x02" + bytes(8), b"\x00" + struct.pack(">q", -(2**63)), b"\x01" + struct.pack(">q", 7)]
    assert read_ordered(pa.array(longs), pa.int64()).to_pylist() == [None, -(2**63), 7]
    flipped = bytes(0xFF ^ byte for byte in struct.pack(">f", -1.5))
    floats = [b"\x00" + flipped, b"\x01" + struct.pack(">f", 1.5)]
    assert read_ordered(pa.array(floats), pa.float32()).to_pylist() == [-1.5, 1.5]
    with pytest.raises(ValueError, match="9 bytes"):
        read_ordered(pa.array([b"\x01"]), pa.int64())


@pytest.mark.parametrize("micros", [-1, 0, 1_700_000_000_000_000])
def test_event_times_stand_before_or_behind_the_key(micros: int) -> None:
    instant = struct.pack(">Q", micros + 2**63)
    row = b"\x00" + unsafe(5)
    for kind, key in (("Prefix", instant + row), ("Postfix", row + instant)):
        rows = keys_of({"keyStateEncoderType": f"TimestampAs{kind}KeyStateEncoderSpec"}, [LONG], key, multiple=True)
        value = b"".join(struct.pack(">I", 16) + unsafe(each) for each in (8, 9))
        keys, index, values = rows.decode([StoredRow(1, key, value)]).columns
        assert index.to_pylist() == [0, 1]
        assert python_values(keys) == [(5, micros)] * 2
        assert python_values(values) == [(8,), (9,)]


def test_columns_of_one_name_are_told_apart() -> None:
    rows = keys_of({"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}, [LONG, LONG, LONG], b"")
    assert [field.name for field in rows.key_fields] == ["n", "n_2", "n_3"]


def test_keys_with_a_collation_are_read_and_not_looked_for() -> None:
    collated = {**LONG, "type": "string", "metadata": {"__COLLATIONS": {"n": "UNICODE_CI"}}}
    rows = keys_of({"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}, [collated], b"")
    assert python_values(rows.decode([StoredRow(1, unsafe(b"A"), unsafe(3))]).columns[0]) == [("A",)]
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="collation"):
        rows.find_wanted(("a",))


@pytest.mark.parametrize("kind", [CalendarIntervalType(), GeometryType(4326), GeographyType(4326)], ids=repr)
def test_a_type_that_cannot_be_shown_is_named(kind: DataType) -> None:
    shown = {**LONG, "type": json.loads(ArrayType(kind).json())}
    said = f"columns of a state with .*: Values of type {re.escape(json.loads(kind.json()))} cannot be shown"
    with pytest.raises(pyspark_ckpt.FormatError, match=said):
        keys_of({"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}, [shown], b"")
