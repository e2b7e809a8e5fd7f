"""Rows of keyed state, damaged: each is read as a value of its type, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd  # noqa: F401 - pyarrow loads it when it is first given text: that is no reader's memory
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pyspark_ckpt.operators.declarations.states import ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.encoding.evolution import EvolvedCodec, read_schemas
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.rows.list_layout import SPAN_ELEMENTS, Head, Heads, IndexRows, span
from pyspark_ckpt.operators.rows.ordered_rows import encode_ordered_key
from pyspark_ckpt.operators.rows.ttl_stamps import Life, Stamps, index_instant
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.database import write_table_file
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import Descriptor
from tests.fuzz.mutations import damaged, fuzzed, read_or_refuse
from tests.labs.lab import TUNING
from tests.labs.session_lab import HOUR, LONG, TEXT, SessionLab, suffix_of
from tests.operators.kinds import ALL, ORDERED

_FEW = ("bigint", "date", "timestamp", "string", "decimal(38,10)", "map<string,bigint>", "array<struct>")


@pytest.mark.parametrize("name", ["boolean", "double", *_FEW])
@fuzzed
@given(data=st.data())
def test_a_value_is_of_its_type_or_refused(name: str, data: st.DataObject) -> None:
    kind, values = ALL[name]
    codec = make_value_codec(kind, whose="state 'seen'")
    stored = data.draw(damaged(codec.encode(data.draw(values))))
    found = read_or_refuse(lambda: codec.decode(stored), stored, "state 'seen'")
    if found is not None:
        codec.encode(found)  # which refuses another type
    column = read_or_refuse(lambda: codec.decode_column([stored, None, stored]), stored, "state 'seen'")
    if column is not None:
        column.validate(full=True)
        assert column.type == kind


@pytest.mark.parametrize("name", [*(name for name in _FEW if name in ORDERED), "boolean", "array<string>"])
@fuzzed
@given(data=st.data())
def test_a_key_is_of_its_type_or_refused(name: str, data: st.DataObject) -> None:
    kind, values = ORDERED[name]
    codec = KeyCodec([kind, pa.string()], "a key of it")
    stored = data.draw(damaged(codec.encode((data.draw(st.none() | values), "behind"))))
    found = read_or_refuse(lambda: codec.decode(stored), stored, "a key of it")
    if found is not None:
        assert len(codec.encode(found)) == len(stored)
    behind = read_or_refuse(lambda: codec.read(b"1234" + stored, 4), stored, "a key of it")
    assert behind is None or behind[1] <= 4 + len(stored)


def test_a_value_of_another_type_or_schema_is_refused() -> None:
    """Which one without types would take."""
    for kind, stored in (
        (pa.string(), b"\x01\x05"),
        (pa.list_(pa.int64()), b"\x01\x91\xa1x"),
        (pa.string(), b"\x02\xa1x"),
        (pa.int64(), b"\x02\x01" + bytes(8)),
        (pa.decimal128(4, 2), b"\x01\xa3NaN"),
        (pa.decimal128(4, 2), b"\x01\xac1E+999999999"),
    ):
        with pytest.raises(FormatError, match="not of type"):
            make_value_codec(kind).decode(stored)
        with pytest.raises(FormatError, match="not of type"):
            make_value_codec(kind).decode_column([stored])


def test_values_whose_sizes_are_wrong_in_turn_are_refused() -> None:
    """Together they have the size of two, and would be read as two others."""
    codec = make_value_codec(pa.int64())
    first, second = codec.encode(1), codec.encode(2)
    with pytest.raises(FormatError, match="9 bytes, not 10"):
        codec.decode_column([first[:-1], b"\x00" + second])


def test_an_empty_value_is_refused() -> None:
    evolved = EvolvedCodec([pa.int32(), pa.int64()], 2, {})
    for codec in (make_value_codec(pa.int64()), make_value_codec(pa.string()), evolved):
        with pytest.raises(FormatError):
            codec.decode(b"")
        with pytest.raises(FormatError):
            codec.decode_column([b""])


_OWN = {"type": "udt", "pyClass": "no_such_module.Point"}


@pytest.mark.parametrize(
    "schema", [None, "x", {"type": "struct"}, {"type": "array"}, "decimal(99,1)", [[]], {}, _OWN, {"type": "udt"}]
)
def test_a_stored_type_that_is_none_is_refused(schema: object) -> None:
    with pytest.raises(FormatError, match="stored type"):
        arrow_type(schema)


def _nested(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    field = st.builds(lambda kind: {"name": "n", "type": kind, "nullable": True, "metadata": {}}, inner)
    return st.one_of(
        st.builds(lambda kind: {**_OWN, "sqlType": kind}, inner),
        st.builds(lambda kind: {"type": "array", "elementType": kind, "containsNull": True}, inner),
        st.builds(lambda key, kind: {"type": "map", "keyType": key, "valueType": kind}, inner, inner),
        st.builds(lambda fields: {"type": "struct", "fields": fields}, st.lists(field | inner, max_size=2)),
    )


@fuzzed
@given(
    schema=st.recursive(
        st.sampled_from(["long", "decimal(9,2)", "x", "udt", None, _OWN, {**_OWN, "sqlType": 5}]), _nested
    )
)
def test_a_stored_type_with_classes_is_one_without_them_or_refused(schema: object) -> None:
    stored = json.dumps(schema).encode()
    found = read_or_refuse(lambda: arrow_type(schema), stored, "stored type")
    assert found is None or isinstance(found, pa.DataType)


@pytest.mark.parametrize(
    "stored",
    ["x", {"value": 1}, {"value": {"schemas": [], "current": 1}}, {"value": {"schemas": ["long"], "current": 0}}],
)
def test_stored_types_that_are_none_are_refused(stored: object) -> None:
    with pytest.raises(FormatError, match="of it"):
        read_schemas(Descriptor(value_schema=stored), "value", "of it")


@fuzzed
@given(data=st.data())
def test_the_head_of_a_list_is_read_or_refused(data: st.DataObject) -> None:
    head = data.draw(st.builds(Head, st.integers(1, 2**40), st.integers(0, 2**40)))
    stored = data.draw(damaged(head.encode()))
    found = read_or_refuse(lambda: Head.decode(stored), stored, "head of a list")
    assert found is None or 0 < found.end < 2**63
    for others in ([], [None], [head.encode()]):
        several = read_or_refuse(partial(_heads, [*others, stored, stored]), stored, "head of a list")
        alone = [Head() if other is None else head for other in others]
        assert several == (None if found is None else [*alone, found, found])


def _heads(stored: list[bytes | None]) -> list[Head]:
    return list(Heads.decode(Cells.of(stored)))


_ENDS, _LIVES = st.integers(1, 2**63 - 1), st.integers(1, 2**64 - 1)


@given(
    st.one_of(
        st.lists(st.one_of(st.just(Head()), st.builds(Head, _ENDS, _LIVES, st.booleans()))),
        st.lists(st.sampled_from([Head(), Head(1), Head(2), Head(3, 4), Head(5, 6, is_refreshed=True)])),
    )
)
def test_many_heads_are_written_and_read_as_single_ones(heads: list[Head]) -> None:
    stored = [head.encode() if head.end else None for head in heads]
    assert list(Heads.decode(Cells.of(stored))) == heads
    written = [head for head in heads if head.end]
    assert Heads.of(written).encode().strings() == [row for row in stored if row is not None]


@fuzzed
@given(data=st.data())
def test_a_row_of_an_expiry_index_is_read_or_refused(data: st.DataObject) -> None:
    single = encode_ordered_key(HOUR, suffix_of("b") + (4).to_bytes(8, "big")), b"\x01"
    key = encode_ordered_key(HOUR, suffix_of("a") + (1 << 63 | 7).to_bytes(8, "big"))
    value = b"\x02\x05" + (9).to_bytes(8, "little") + (3).to_bytes(8, "little")
    assert value == span(5, 9, 3)
    read = IndexRows.of([single, (key, value)])
    assert read.columns.tolist() == [(HOUR, 4, 1, 0, 0, False), (HOUR, 7, 9, 3, 5, True)]
    assert read.suffixes.strings() == [suffix_of("b"), suffix_of("a")]
    key, value = data.draw(damaged(key)), data.draw(damaged(value))
    for rows in ([(key, value)], [single, (key, value)]):
        found = read_or_refuse(partial(IndexRows.of, rows), key + value, "expiry index")
        assert found is None or 0 < found.columns["size"].min() <= found.columns["size"].max() <= SPAN_ELEMENTS


@pytest.mark.parametrize("size", [0, SPAN_ELEMENTS + 1, 2**63, 2**64 - 1])
def test_a_span_that_is_larger_than_any_is_refused_before_it_is_made(size: int) -> None:
    key = encode_ordered_key(HOUR, suffix_of("a") + (1 << 63).to_bytes(8, "big"))
    with pytest.raises(FormatError, match="neither an element nor a span"):
        IndexRows.of([(key, b"\x02\x05" + size.to_bytes(8, "little") + bytes(8))])


@fuzzed
@given(data=st.data())
def test_a_time_to_live_is_read_alike_alone_and_with_others_or_refused(data: st.DataObject) -> None:
    life = Life(Ttl("1 hour"), 5 * HOUR)
    stored = data.draw(damaged(life.stamp(b"value")))
    alone = read_or_refuse(lambda: (index_instant(stored), life.value(stored)), stored, "time to live")
    three = Cells.of([stored] * 3)
    together = read_or_refuse(
        lambda: (Stamps.of(three).instants.tolist(), life.filter_seen(three).strings()), stored, "time to live"
    )
    if alone is None:
        assert together is None
    else:
        assert together == ([-1 if alone[0] is None else alone[0]] * 3, [alone[1]] * 3)


@pytest.mark.parametrize("stored", [b"", b"\x80", b"\x80\x05" + bytes(8), b"\x80\xff" + bytes(9)])
def test_a_time_to_live_without_a_value_is_refused_alone_and_with_others(stored: bytes) -> None:
    """Many of them, of one size, would be no rows at all."""
    life = Life(Ttl("1 hour"), 5 * HOUR)
    for read in (life.value, life.is_dead, index_instant):
        with pytest.raises(FormatError, match="time to live"):
            read(stored)
    with pytest.raises(FormatError, match="time to live"):
        life.filter_seen(Cells.of([stored, stored]))
    with pytest.raises(FormatError, match="time to live"):
        Stamps.of(Cells.of([stored, stored]))


_TTL = Ttl("1 hour")
_STATES: dict[str, tuple[Any, dict[str, pa.DataType]]] = {
    "value": (ValueState("value", "bigint"), {"value": LONG}),
    "timed": (ValueState("timed", "string", ttl=_TTL), {"value": TEXT}),
    "list": (ListState("list", "bigint"), {"element": LONG}),
    "spans": (ListState("spans", "string", ttl=_TTL), {"element": TEXT}),
    "map": (MapState("map", "string", "bigint", ttl=_TTL), {"key": TEXT, "value": LONG}),
    "timers": (Timers("timers", clock="processing"), {}),
}
_USES: dict[str, Callable[[Any], object]] = {
    "value": lambda state: state.value(),
    "timed": lambda state: (state.value(), state.update("x")),
    "list": lambda state: (list(state.get()), state.add(1)),
    "spans": lambda state: (list(state.get()), state.add("x")),
    "map": lambda state: (list(state.items()), state.put("k", 1)),
}
_USERS = [f"user {n}" for n in range(60)]


def _write(_batch: Any, states: dict[str, Any], user: str) -> None:  # noqa: ANN401
    states["value"].update(1)
    states["timed"].update("text")
    states["list"].add_all([1, 2])
    states["spans"].add_all(["a", "b"])
    states["map"].put_all({"k": 1, "l": 2})
    states["timers"].register(2 * HOUR, user)


def test_damaged_rows_in_a_store_are_refused_by_whatever_reads_them(tmp_path: Path) -> None:
    """All rows of all kinds of states with random damage: what is read is right or refused, and sweeps as well."""
    random = Random(20)
    lab = SessionLab(tmp_path, _STATES)
    batch, states = lab.begin(now_ms=1)
    for user in _USERS:
        batch.at(user)
        _write(batch, states, user)
    batch.stage()
    lab.commit(batch)
    batch, _ = lab.begin(now_ms=1)
    rows = [(key, value) for key, value in batch.session.scan(b"") if key[:2] != b"\x00\x00"]
    hurt = sorted({_hurt_key(random, key): _hurt(random, value) for key, value in rows}.items())
    staging = Path(batch.session._ticket.staging)
    marker = Marker(lab.version + 1, batch.session._ticket.new_id)
    write_table_file(staging / "0.sst", [(b"\x00\x00m", marker.encode()), *hurt], TUNING)
    answer = lab.lab.server.call("commit", txn=batch.number, files=["0.sst"], rows={}, num_partitions=1)
    lab.version, lab.id = answer["version"], answer["id"]
    refused = dict.fromkeys(_USES, 0)
    for name, use in _USES.items():
        batch, states = lab.begin(now_ms=1)
        for user in _USERS:
            batch.at(user)
            try:
                use(states[name])
            except FormatError:
                refused[name] += 1
        batch.abort()
    assert all(refused.values()), refused
    with pytest.raises(FormatError):
        lab.begin(now_ms=10 * HOUR)  # sweeps
    lab.close()


def _hurt_key(random: Random, key: bytes) -> bytes:
    """Rows in the order of time stay where they are, so that they are met by what sweeps, and by nothing else."""
    return key if key[0] >> 7 else key[:2] + _hurt(random, key[2:])


def _hurt(random: Random, content: bytes) -> bytes:
    """One of two stays as it is."""
    if random.random() < 0.5:
        return content
    at = random.randrange(len(content) + 1)
    return random.choice((content[:at], content[:at] + random.randbytes(3), content[:at] + b"\xff" * 9))
