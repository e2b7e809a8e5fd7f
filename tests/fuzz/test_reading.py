"""Rows and types of a checkpoint, damaged, as the readers of state meet them: read as their type, or refused."""

from __future__ import annotations

import struct
from typing import Any

import pandas as pd  # noqa: F401 - pyarrow loads it when it is first given text: that is no reader's memory
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec, StoredRow
from pyspark_ckpt.offline.reading.stored_state import make_keyed_codec
from pyspark_ckpt.operators.types.type_names import arrow_type_named
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor, TimeToLive
from tests.fuzz.mutations import damaged, fuzzed, read_or_refuse

FIELDS = {
    "n": "long",
    "text": "string",
    "exact": "decimal(38,10)",
    "list": {"type": "array", "elementType": "string", "containsNull": True},
    "map": {"type": "map", "keyType": "integer", "valueType": "long", "valueContainsNull": True},
    "any": "variant",
    "pair": {"type": "struct", "fields": [{"name": "a", "type": "date", "nullable": True, "metadata": {}}]},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "NoPrefixKeyStateEncoderSpec": {},
    "PrefixKeyScanStateEncoderSpec": {"numColsPrefixKey": 1},
    "RangeKeyScanStateEncoderSpec": {"orderingOrdinals": [0]},
    "TimestampAsPrefixKeyStateEncoderSpec": {},
    "TimestampAsPostfixKeyStateEncoderSpec": {},
}


def schema(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": FIELDS[name], "nullable": True, "metadata": {}} for name in names]
    return {"type": "struct", "fields": fields}


def behind(*parts: bytes) -> bytes:
    """An UnsafeRow of what has no fixed width."""
    words, content, at = b"", b"", 8 * (1 + len(parts))
    for part in parts:
        words += struct.pack("<Q", (at + len(content)) << 32 | len(part))
        content += part + bytes(-len(part) % 8)
    return bytes(8) + words + content


TEXTS = struct.pack("<qq", 2, 0) + struct.pack("<QQ", 32 << 32 | 2, 40 << 32 | 1) + b"ab" + bytes(6) + b"c" + bytes(7)
ANY = struct.pack("<i", 3) + b"\x09ab\x01\0\0"
NUMBERS = struct.pack("<qq", 1, 0) + struct.pack("<q", 5)
VALUE = behind(
    b"text", (10**20).to_bytes(16, "big"), TEXTS, struct.pack("<q", len(NUMBERS)) + NUMBERS * 2, bytes(16), ANY
)
WORD = bytes(8) + struct.pack("<q", 7)
KEYS = {
    "NoPrefixKeyStateEncoderSpec": behind(b"k") + bytes(8),
    "PrefixKeyScanStateEncoderSpec": struct.pack("<I", 25) + b"\0" + behind(b"k") + b"\0" + WORD,
    "RangeKeyScanStateEncoderSpec": struct.pack("<I", 33) + b"\0" + behind(b"\1" + bytes(8)) + b"\0" + WORD,
    "TimestampAsPrefixKeyStateEncoderSpec": bytes(8) + b"\0" + WORD,
    "TimestampAsPostfixKeyStateEncoderSpec": b"\0" + WORD + bytes(8),
}


def check(codec: StateCodec, row: StoredRow, where: str) -> None:
    decoded = read_or_refuse(lambda: codec.decode([row, row]), row.key + row.value, where)
    if decoded is not None:
        for column, field in zip(decoded.columns, codec.fields, strict=True):
            column.validate(full=True)
            assert column.type == field.type


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("multiple", [False, True])
@fuzzed
@given(data=st.data())
def test_a_row_of_spark_is_of_its_types_or_refused(encoder: str, multiple: bool, data: st.DataObject) -> None:  # noqa: FBT001
    names = {"No": ("text", "n"), "Pr": ("text", "n"), "Ra": ("n", "n"), "Ti": ("n",)}[encoder[:2]]
    descriptor = Descriptor(
        multiple_values=multiple,
        key_schema=schema(*names),
        value_schema=schema("text", "exact", "list", "map", "pair", "any"),
        key_encoder={"keyStateEncoderType": encoder, **ENCODERS[encoder]},
    )
    value = struct.pack(">I", len(VALUE)) + VALUE if multiple else VALUE
    codec = NativeRows(descriptor, "default", "state 'default'")
    assert len(codec.decode([StoredRow(1, KEYS[encoder], value)]).rows) == 1
    row = StoredRow(1, data.draw(damaged(KEYS[encoder])), data.draw(damaged(value)))
    check(codec, row, "state 'default'")


@pytest.mark.parametrize("kind", ["ValueState", "ListState", "MapState", "Timers"])
@fuzzed
@given(data=st.data())
def test_a_row_of_a_keyed_state_is_of_its_types_or_refused(kind: str, data: st.DataObject) -> None:
    types = {"schemas": ["string"], "current": 1}
    what = {"ListState": ["element"], "MapState": ["key", "value"]}.get(kind, ["value"])
    own = Descriptor(
        ordered=kind == "Timers",
        key_schema={"user": "string"},
        value_schema=dict.fromkeys(what, types),
        key_encoder={"keyed": "it", "max_parallelism": 128, "kind": kind},
        ttl=TimeToLive(1000, "on_create_and_write", "event"),
    )
    entry = {"ListState": (5).to_bytes(8, "big"), "MapState": b"\x01m\0\0", "Timers": b"soon"}.get(kind, b"")
    key = (b"\x80" + bytes(7) if kind == "Timers" else b"") + b"\x01user\0\0" + entry
    value = b"\x80\x05" + struct.pack("<q", 1_700_000_000_000) + b"\x01\xa1v"
    codec = make_keyed_codec(own, own, "it", "state 'it'", has_life=True)
    assert len(codec.decode([StoredRow(1, key, value)]).rows) == 1
    check(codec, StoredRow(1, data.draw(damaged(key)), data.draw(damaged(value))), "")


@fuzzed
@given(data=st.data())
def test_the_name_of_a_type_is_one_or_refused(data: st.DataObject) -> None:
    name = data.draw(damaged(b"struct<a: list<element: decimal128(9, 2)>, b: timestamp[us, tz=UTC] not null>"))
    text = name.decode("utf-8", errors="replace")
    found = read_or_refuse(lambda: arrow_type_named(text), name, "not the type of a key")
    assert found is None or arrow_type_named(str(found)) == found


@pytest.mark.parametrize(
    "described",
    [
        {"key_schema": "x"},
        {"key_schema": schema("n"), "value_schema": 5},
        {"key_schema": schema("n"), "value_schema": schema("n"), "key_encoder": {"keyStateEncoderType": "Other"}},
        {"key_schema": schema("n"), "value_schema": schema("n"), "key_encoder": []},
        {
            "key_schema": schema("n"),
            "value_schema": schema("n"),
            "key_encoder": {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": "x"},
        },
        {
            "key_schema": schema("n"),
            "value_schema": schema("n"),
            "key_encoder": {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [9]},
        },
        {"key_schema": schema("n"), "key_encoder": {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec"}},
    ],
)
def test_a_description_that_is_none_is_refused(described: dict[str, Any]) -> None:
    with pytest.raises((FormatError, InvalidInputError)):
        NativeRows(Descriptor(**described), "default", "state 'default'")
    keyed = Descriptor(**{**described, "key_encoder": {"keyed": "it", "kind": "ValueState"}})
    with pytest.raises(FormatError):
        make_keyed_codec(keyed, keyed, "it", "state 'it'", has_life=False)
