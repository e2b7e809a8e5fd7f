"""Bytes of keyed state as the first release writes them: later ones must write and read the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.rows.ordered_rows import decode_ordered_key, encode_ordered_key
from pyspark_ckpt.operators.rows.timer_rows import read_timer_key, timer_key
from pyspark_ckpt.operators.rows.ttl_stamps import Life, index_instant
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.state_store.errors import FormatError

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "keyed.json").read_text(encoding="utf-8"))
_TAGS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": Decimal,
    "bytes": bytes.fromhex,
}


def python_value(said: Any) -> Any:  # noqa: ANN401
    """A value of the golden file: what JSON has not is under its name."""
    if isinstance(said, dict) and len(said) == 1 and next(iter(said)) in _TAGS:
        ((tag, text),) = said.items()
        return _TAGS[tag](text)
    if isinstance(said, dict):
        return {key: python_value(value) for key, value in said.items()}
    return [python_value(each) for each in said] if isinstance(said, list) else said


def plain(value: Any) -> Any:  # noqa: ANN401
    """Named tuples as lists."""
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("case", GOLDEN["keys"], ids=lambda case: case["bytes"])
def test_keys_have_these_bytes(case: Any) -> None:  # noqa: ANN401
    codec = KeyCodec([arrow_type(schema) for schema in case["types"]])
    values = python_value(case["values"])
    assert codec.encode(values).hex() == case["bytes"]
    assert plain(codec.decode(bytes.fromhex(case["bytes"]))) == values


@pytest.mark.parametrize("case", GOLDEN["values"], ids=lambda case: case["bytes"])
def test_values_have_these_bytes(case: Any) -> None:  # noqa: ANN401
    codec = make_value_codec(arrow_type(case["type"]))
    value = python_value(case["value"])
    assert codec.encode(value).hex() == case["bytes"]
    assert plain(codec.decode(bytes.fromhex(case["bytes"]))) == value


@pytest.mark.parametrize("case", GOLDEN["lives"], ids=lambda case: case["ttl"])
def test_rows_with_a_time_to_live_have_these_bytes(case: Any) -> None:  # noqa: ANN401
    stored = bytes.fromhex(case["bytes"])
    assert Life(Ttl(case["ttl"]), case["now_ms"]).stamp(bytes.fromhex(case["value"])) == stored
    assert index_instant(stored) == case["instant"]


@pytest.mark.parametrize("case", GOLDEN["ordered"], ids=lambda case: str(case["instant"]))
def test_rows_in_the_order_of_time_have_these_keys(case: Any) -> None:  # noqa: ANN401
    row = bytes.fromhex(case["row"])
    assert encode_ordered_key(case["instant"], row).hex() == case["bytes"]
    assert decode_ordered_key(bytes.fromhex(case["bytes"])) == row


@pytest.mark.parametrize("case", GOLDEN["timers"], ids=lambda case: str(case["at_us"]))
def test_timers_have_these_keys(case: Any) -> None:  # noqa: ANN401
    row = bytes.fromhex(case["row"])
    assert timer_key(case["at_us"], row).hex() == case["bytes"]
    assert read_timer_key(bytes.fromhex(case["bytes"])) == (case["at_us"], row)


@pytest.mark.parametrize(
    "key", ["80", "8000018df4dc549501", "8000018df4dc549502", "8000018df4dc54950200000180ab01234567"]
)
def test_what_is_no_timer_is_refused(key: str) -> None:
    with pytest.raises(FormatError, match="A timer is stored under"):
        read_timer_key(bytes.fromhex(key))
