"""Values, bytes and columns at random through everything that makes Arrow arrays: run as a process, which must not die.

``python -m tests.fuzz.arrow_lives SEED ROUNDS``. What is refused is refused by an exception.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_order import in_order_as_numbers, numbers_to_floats
from pyspark_ckpt.operators.encoding.unsafe_rows import read_rows, row_reader
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.types.columns import arrow_values, python_values
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError

REFUSED = (*WRONG_VALUE, IndexError, FormatError, InvalidInputError)
PLAIN = [
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(9, 2),
    pa.decimal128(38, 18),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.time64("ns"),
    pa.duration("us"),
    pa.null(),
]
OTHERS = [
    pa.uint64(),
    pa.float16(),
    pa.large_string(),
    pa.date64(),
    pa.timestamp("ns"),
    pa.timestamp("s", "UTC"),
    pa.decimal128(20, 5),
    pa.duration("ns"),
]
NAN = float("nan")
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    127,
    2**31,
    2**63,
    -(2**63),
    10**40,
    0.0,
    -0.0,
    NAN,
    1e300,
    float("inf"),
    Decimal("1.5"),
    Decimal("NaN"),
    Decimal("9" * 38),
    "",
    "x",
    "\ud800",
    "\x00",
    b"",
    b"\xff\xfe",
    date.min,
    date.max,
    datetime.min,  # noqa: DTZ901
    datetime.max.replace(tzinfo=timezone.utc),
    time(23, 59, 59, 999999),
    timedelta.max,
    timedelta.min,
    np.int64(5),
    np.bool_(True),
    np.float32(1.5),
    np.str_("y"),
    np.datetime64("NaT"),
    np.datetime64("2020-01-01"),
    pd.NaT,
    pd.NA,
    pd.Timestamp("2020-01-01"),
    object(),
]


class Lives:
    """What one seed does."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.taken = 0

    def kind(self, depth: int = 0, plain: list[pa.DataType] = PLAIN) -> pa.DataType:
        """A type."""
        draw = self.random.random()
        if depth > 3 or draw < 0.5:
            return self.random.choice(plain)
        inner = self.kind(depth + 1, plain)
        if draw < 0.65:
            return pa.list_(self.field("element", inner))
        if draw < 0.85:
            keys = self.kind(depth + 1, plain) if draw < 0.7 else self.random.choice([pa.string(), pa.int32()])
            keys = pa.string() if pa.types.is_null(keys) else keys
            return pa.map_(keys, self.field("value", inner))
        fields = [inner, *(self.kind(depth + 1, plain) for _ in range(self.random.randrange(2)))]
        named = [self.field("abc"[n], each) for n, each in enumerate(fields)]
        return pa.struct(named if self.random.random() < 0.95 else [])

    def field(self, name: str, kind: pa.DataType) -> pa.Field:
        """A field, which may be NOT NULL."""
        return pa.field(name, kind, pa.types.is_null(kind) or self.random.random() < 0.8)

    def value(self, kind: pa.DataType) -> Any:  # noqa: ANN401
        """A value that is mostly of the type's form; its parts may be None or anything else."""
        if self.random.random() < 0.1:
            return self.random.choice(VALUES)
        count = self.random.randrange(3)
        if pa.types.is_struct(kind):
            return tuple(self.value(field.type) for field in kind)
        if pa.types.is_map(kind):
            pairs = [(self.value(kind.key_type), self.value(kind.item_type)) for _ in range(count)]
            return {key: item for key, item in pairs if getattr(key, "__hash__", None) and not isinstance(key, tuple)}
        if pa.types.is_list(kind):
            return [self.value(kind.value_type) for _ in range(count)]
        fitting = [each for each in VALUES if self.attempt(partial(arrow_values, [each], kind)) is not None]
        return self.random.choice(fitting or [None])

    def attempt(self, act: Callable[[], Any]) -> Any:  # noqa: ANN401
        """What ``act`` makes, or None if that is refused."""
        try:
            made = act()
        except REFUSED:
            return None
        self.taken += 1
        return made

    def use(self, column: pa.Array) -> None:
        """Do with a column what is done with one."""
        column.validate(full=True)
        self.attempt(lambda: python_values(column))
        self.attempt(lambda: python_values(column.slice(self.random.randrange(len(column) + 1))))
        if column.type in {pa.float32(), pa.float64()}:
            assert numbers_to_floats(in_order_as_numbers(column), column.type).null_count == column.null_count
        batch = pa.record_batch([column], names=["it"])
        read = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
        read.validate(full=True)

    def damage(self, content: bytes) -> bytes:
        """The same with some bytes that are others, or fewer of them."""
        made = bytearray(content)
        for _ in range(self.random.randrange(4)):
            if made:
                at = self.random.randrange(len(made))
                made[at] = self.random.choice([0, 1, 0x7F, 0x80, 0xC0, 0xFF, self.random.randrange(256)])
        end = self.random.randrange(len(made) + 1) if self.random.random() < 0.2 else len(made)
        return bytes(made[:end])

    def output(self) -> None:
        """Values become a column, and that one of another type."""
        kind = self.kind()
        column = self.attempt(lambda: arrow_values([self.value(kind) for _ in range(self.random.randrange(4))], kind))
        if column is None:
            return
        self.use(column)
        part = column.slice(self.random.randrange(len(column) + 1))
        for other in (kind, self.kind(), self.kind(0, PLAIN + OTHERS)):
            cast = self.attempt(partial(exact_column, part, other))
            if cast is not None:
                assert len(cast) == len(part)
                self.use(cast)

    def state(self) -> None:
        """A value is stored, damaged and read; msgpack of anything as well."""
        kind = self.kind()
        codec = self.attempt(lambda: make_value_codec(kind))
        if codec is None:
            return
        stored = [self.attempt(lambda: codec.encode(self.value(kind))) for _ in range(3)]
        made = [self.damage(each) if each and self.random.random() < 0.7 else each for each in stored]
        made.append(b"\x01" + msgspec.msgpack.encode(self.loose(kind)))
        for each in made:
            if each is not None:
                self.attempt(partial(codec.decode, each))
        for column in [self.attempt(partial(codec.decode_column, each)) for each in (made, *([each] for each in made))]:
            if column is not None:
                self.use(column)
                self.attempt(partial(codec.encode_cells, column))

    def loose(self, kind: pa.DataType) -> Any:  # noqa: ANN401
        """What msgpack may hold for a type, with null anywhere, in keys of maps as well."""
        if self.random.random() < 0.2:
            return None
        count = self.random.randrange(3)
        if pa.types.is_struct(kind):
            return [self.loose(field.type) for field in kind]
        if pa.types.is_map(kind):
            return [[self.loose(kind.key_type), self.loose(kind.item_type)] for _ in range(count)]
        if pa.types.is_list(kind):
            return [self.loose(kind.value_type) for _ in range(count)]
        return self.random.choice([0, -1, 2**31 - 1, 2**63 - 1, -(2**63), 1.5, "1.50", "x", b"\xff", True])

    def keys(self) -> None:
        """A key is encoded, damaged and read."""
        kind = self.kind()
        codec = self.attempt(lambda: KeyCodec([kind]))
        if codec is None:
            return
        stored = [self.attempt(lambda: codec.encode((self.value(kind),))) for _ in range(3)]
        made = [self.damage(each) for each in stored if each is not None]
        for column in self.attempt(lambda: codec.decode_columns(made)) or []:
            self.use(column)
            self.attempt(partial(codec.encode_columns, [column]))

    def rows(self) -> None:
        """Words at random, which say small numbers more often than not, are read as rows of Spark."""
        schema = pa.schema([pa.field("abc"[n], self.kind()) for n in range(self.random.randrange(1, 4))])
        rows = []
        for _ in range(self.random.randrange(1, 4)):
            words = [self.word() for _ in range(len(schema) + 1 + self.random.randrange(12))]
            rows.append(b"".join(word.to_bytes(8, "little") for word in words))
        batch = self.attempt(lambda: read_rows(rows, schema))
        self.attempt(lambda: row_reader(schema)(rows[0]))
        for column in [] if batch is None else batch.columns:
            if self.attempt(partial(validated, column)) is not None:
                self.use(column)

    def word(self) -> int:
        """A bitmap, a count, an offset with a size, or anything."""
        place = self.random.randrange(0, 96, 8) << 32 | self.random.choice([0, 1, 8, 16, 24, 32])
        return self.random.choice([0, 0, 1, 2, 8, 16, 24, place, place, place, self.random.randrange(1 << 64)])


def validated(column: pa.Array) -> pa.Array:
    """The column. Raises ArrowInvalid for one that is damaged."""
    column.validate(full=True)
    return column


def main(seed: int, rounds: int) -> None:
    """All of it, so many times."""
    lives = Lives(seed)
    for _ in range(rounds):
        for act in (lives.output, lives.state, lives.keys, lives.rows):
            act()
    print(f"taken {lives.taken}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
