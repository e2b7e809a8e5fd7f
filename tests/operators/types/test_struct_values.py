"""Values with names go by name, wherever a program gives a row, a struct or a key."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.types.columns import arrow_values, python_values
from pyspark_ckpt.operators.types.struct_values import struct_maker


class Swapped(NamedTuple):
    """The fields of PAIR in another order."""

    n: int
    k: int


class Shifted(NamedTuple):
    """One of the fields of PAIR, elsewhere."""

    n: int
    other: int


class Unlike(NamedTuple):
    """No field of PAIR."""

    a: int
    b: int


@dataclass
class Plain:
    """An object with the fields of PAIR."""

    n: int
    k: int


PAIR = pa.struct([("k", pa.int64()), ("n", pa.int64())])
SWAPPED = [
    Swapped(2, 1),
    Row(n=2, k=1),
    {"n": 2, "k": 1},
    Plain(2, 1),
    struct_maker(pa.struct([PAIR[1], PAIR[0]]))((2, 1)),
]
OTHER: Any = namedtuple("OTHER", "N k2")  # noqa: PYI024
ROW: Any = Row
MISTAKEN = [
    Shifted(2, 1),
    Row(n=2, K=1),
    OTHER(2, 1),
    {"k": 1},
    {"k": 1, "m": 2},
    (1,),
    Row(k=1),
]  # fmt: skip
POSITIONS = [Unlike(1, 2), ROW(1, 2), Row(a=1, b=2), Row(k=1, other=2), Row(K=1, N=2), [1, 2], (1, 2)]


def _write_column(value: object) -> tuple[Any, ...]:
    return tuple(python_values(arrow_values([value], PAIR))[0])


def _write_many(value: object) -> tuple[Any, ...]:
    return tuple(python_values(arrow_values([(5, 6), value, None], PAIR))[1])


def _write_numbers(value: object) -> tuple[Any, ...]:
    codec = make_value_codec(PAIR)
    return tuple(codec.decode(codec.encode(value)))


def _write_message(value: object) -> tuple[Any, ...]:
    codec = make_value_codec(pa.struct([("pair", PAIR), ("text", pa.string())]))
    return tuple(codec.decode(codec.encode((value, "a"))).pair)


def _write_key(value: object) -> tuple[Any, ...]:
    codec = KeyCodec([PAIR])
    return tuple(codec.decode(codec.encode((value,)))[0])


WAYS = [_write_column, _write_many, _write_numbers, _write_message, _write_key]
every_way = pytest.mark.parametrize("write", WAYS, ids=[way.__name__ for way in WAYS])


@every_way
@pytest.mark.parametrize("value", SWAPPED, ids=repr)
def test_takes_fields_by_name_when_they_come_in_another_order(
    write: Callable[[object], tuple[Any, ...]], value: object
) -> None:
    assert write(value) == (1, 2)


@every_way
@pytest.mark.parametrize("value", POSITIONS, ids=repr)
def test_takes_fields_by_position_when_no_name_stands_elsewhere(
    write: Callable[[object], tuple[Any, ...]], value: object
) -> None:
    assert write(value) == (1, 2)


@every_way
@pytest.mark.parametrize("value", MISTAKEN, ids=repr)
def test_refuses_fields_that_are_missing_or_stand_elsewhere(
    write: Callable[[object], tuple[Any, ...]], value: object
) -> None:
    with pytest.raises(ValueError, match=r"missing|fields|no field"):
        write(value)


def test_hashes_a_struct_by_name_when_its_fields_come_in_another_order() -> None:
    hash_of = SparkHash([PAIR])
    assert hash_of((Row(n=2, k=1),)) == hash_of(((1, 2),))


def test_reads_a_field_by_its_name_when_it_is_no_attribute() -> None:
    row = struct_maker(pa.struct([("count", pa.int64()), ("class", pa.int64()), ("of day", pa.int64())]))((1, 2, 3))
    assert (row["count"], row["class"], row["of day"], row[-1], row[:2]) == (1, 2, 3, 3, (1, 2))
    assert row._asdict() == {"count": 1, "class": 2, "of day": 3}
    with pytest.raises(KeyError, match="no field 'other'"):
        row["other"]


def test_refuses_to_choose_when_several_fields_have_the_name() -> None:
    row = struct_maker(pa.struct([("n", pa.int64()), ("n", pa.int64())]))((1, 2))
    with pytest.raises(KeyError, match="several fields 'n'"):
        row["n"]


class Give(ckpt.KeyedProcessor):
    """Keeps, and gives, what ``make`` makes of each row."""

    kept = ckpt.ValueState("kept", "struct<k bigint, n bigint>")
    by_pair = ckpt.MapState("by pair", "struct<k bigint, n bigint>", "struct<k bigint, n bigint>")
    all = ckpt.ListState("all", "struct<k bigint, n bigint>")

    def __init__(self, make: Callable[[int, int], object]) -> None:
        self.make = make

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            made = self.make(key["k"], row["n"])
            self.kept.update(made)
            self.by_pair.put((0, 0), made)
            self.all.add(made)
            yield made


class Output(Give):
    """Only gives it."""

    def process(self, _ctx: ckpt.Context, key: tuple[Any, ...], rows: Sequence[Any]) -> Iterator[Any]:
        yield self.make(len(key), len(rows))


def open_harness(make: Callable[[int, int], object], kind: type[Give] = Give) -> testing.Harness:
    return testing.keyed("k bigint, n bigint", "k").process(kind(make), output="k bigint, n bigint")


@pytest.mark.parametrize(
    "make",
    [
        lambda k, n: Row(n=n, k=k),
        lambda k, n: Swapped(n, k),
        lambda k, n: {"n": n, "k": k},
        lambda k, n: Plain(n, k),
        Unlike,
        lambda k, n: (k, n),
    ],
)
def test_keeps_and_outputs_fields_by_name_in_a_program(make: Callable[[int, int], object]) -> None:
    with open_harness(make) as harness:
        found = harness.run([Row(n=2, k=1), Swapped(4, 3)])
        states = harness.states()
    assert sorted(map(tuple, found)) == [(1, 2), (3, 4)]
    assert states["kept"] == {(1,): (1, 2), (3,): (3, 4)}
    assert states["all"] == {(1,): [(1, 2)], (3,): [(3, 4)]}
    assert states["by pair"] == {(1,): {(0, 0): (1, 2)}, (3,): {(0, 0): (3, 4)}}


@pytest.mark.parametrize("row", [{"k": 1}, {"n": 2}, Row(n=2, other=1), Shifted(2, 1)], ids=repr)
def test_names_the_field_when_an_output_row_lacks_it_or_has_it_elsewhere(row: object) -> None:
    with open_harness(lambda _k, _n: row, Output) as harness, pytest.raises(ckpt.InvalidInputError) as refused:
        harness.run([(1, 2)])
    assert "Output.process()" in str(refused.value)
    assert "'n'" in str(refused.value) or "'k'" in str(refused.value)


def test_refuses_a_row_of_a_test_when_it_lacks_a_column() -> None:
    with open_harness(ROW) as harness, pytest.raises(ckpt.InvalidInputError, match="'n' is missing"):
        harness.run([{"k": 1}])


class Sum(ckpt.KeyedProcessor):
    """The sum of each key."""

    total = ckpt.ValueState("total", "bigint")

    def process(self, _ctx: ckpt.Context, _key: object, rows: Sequence[Any]) -> None:
        self.total.update(sum(row.n for row in rows))


def test_looks_up_a_key_by_name_when_its_columns_come_in_another_order(tmp_path: Path) -> None:
    stream = testing.keyed("k bigint, n bigint, at bigint", ["k", "at"], folder=tmp_path / "kept")
    with stream.process(Sum(), output="k bigint") as harness:
        harness.run([(1, 10, 5), (5, 20, 1)])
        with ckpt.reading.open_state(harness.checkpoint, state="total") as state:
            assert state.get(Row(at=5, k=1)) == state.get((1, 5)) == 10
            assert state.get(Row(at=1, k=5)) == 20
            with pytest.raises(ckpt.InvalidInputError, match="'at' is number 1"):
                state.get(Row(at=1, other=5))
