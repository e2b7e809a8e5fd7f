"""Keys as users write them: an existing row is found, or the key is refused, but never reported as missing."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.reading.keys.json_values import from_json
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.offline.reading.conftest import MakeWritten
from tests.offline.reading.written import UID

LONG = pa.int64()
STATES: Any = {"n": (ValueState("n", "bigint"), {"value": LONG})}


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.string(), "ab", "ab"),
        (pa.string(), "ab", {"ab": 1}),
        (pa.binary(), b"ab", b"ab"),
    ],
)
def test_what_has_elements_and_is_no_array_is_refused_as_one(
    kind: pa.DataType,
    value: Any,  # noqa: ANN401
    other: Any,  # noqa: ANN401
    make_written: MakeWritten,
) -> None:
    made = make_written({"k": pa.list_(kind)})
    made.batch(STATES, [(([value],), lambda states: states.n.update(7))])
    with open_state(made.path, uid=UID) as state:
        assert state.get(([value],)) == 7
        for look_up in (state.get, partial(state.find, convert=from_json)):
            with pytest.raises(InvalidInputError, match="is not an array"):
                look_up([other])


@pytest.mark.parametrize(
    ("kind", "value", "keys"),
    [
        (
            pa.decimal128(19, 2),
            Decimal("12345678901234567.89"),
            ["12345678901234567.89", '"12345678901234567.89"', '{"k": 12345678901234567.89}'],
        ),
        (pa.float64(), 0.1, ["0.1", "[1e-1]"]),
    ],
)
def test_all_digits_of_a_number_are_looked_for(
    kind: pa.DataType,
    value: Any,  # noqa: ANN401
    keys: list[str],
    make_written: MakeWritten,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make_written({"k": kind})
    made.batch(STATES, [((value,), lambda states: states.n.update(7))])
    for key in keys:
        assert main(["state", "get", made.path, "--uid", UID, "--key", key, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == 7


def test_a_state_without_rows_is_said_to_have_none(
    make_written: MakeWritten, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_written({"k": LONG})
    made.batch(STATES, [((1,), lambda states: states.n.update(7))])
    made.batch(STATES, [((1,), lambda states: states.n.clear())])
    assert main(["state", "read", made.path, "--uid", UID, "--format", "json"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"state 'n' of '{UID}' (operator 0) has no rows.\n")


@pytest.mark.parametrize("value", [0.1, Decimal("0.125"), 10**7])
def test_a_decimal_that_no_key_can_be_is_refused(value: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match="does not fit"):
        SparkHash([pa.decimal128(9, 2)])([value])


@pytest.mark.parametrize("key", [[], ["a", "b"], ["a"], ([], [])])
def test_an_array_that_is_given_in_place_of_a_key_is_explained(key: Any, make_written: MakeWritten) -> None:  # noqa: ANN401
    made = make_written({"tags": pa.list_(pa.string())})
    made.batch(STATES, [(([],), lambda states: states.n.update(7))])
    with open_state(made.path, uid=UID) as state:
        assert state.get(([],)) == 7
        with pytest.raises(InvalidInputError, match=r"\(\[\.\.\.\],\)|is not an array"):
            state.get(key)
