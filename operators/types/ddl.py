"""Spark's names of types, read without Spark: for programs that are tested where there is no session.

The grammar is that of Spark's parser (``colTypeList`` and ``dataType`` of SqlBaseParser.g4), for the types that keyed
operators can have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import types

from pyspark_ckpt.pyspark_releases import make_collated_string, make_type
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_PLAIN: Mapping[str, Callable[[], DataType]] = {
    "boolean": types.BooleanType,
    "tinyint": types.ByteType,
    "byte": types.ByteType,
    "smallint": types.ShortType,
    "short": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "bigint": types.LongType,
    "long": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "void": types.NullType,
    "variant": partial(make_type, "VariantType"),
}
_MAX_TIME, _MAX_DIGITS = 6, 38
_YEAR_MONTH, _DAY_TIME = ("year", "month"), ("day", "hour", "minute", "second")
_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\""""
_TOKEN = re.compile(rf"\s*(?:`(?:[^`]|``)*`|[A-Za-z0-9_]+|{_QUOTED}|[<>(),:])")


def read_type(text: str) -> DataType:
    """Return the type that ``text`` names; columns, such as ``user string, n bigint``, are a struct.

    Raises ValueError, InvalidInputError (a type that this release of PySpark does not have).
    """
    try:
        return _Parser(text).read_whole_type()
    except ValueError as not_a_type:
        try:
            return _Parser(text).read_columns()
        except ValueError as not_columns:
            is_known = isinstance(not_a_type, InvalidInputError)  # as a type that this release does not have
            raise (not_columns if _has_columns(text) and not is_known else not_a_type) from None


def _has_columns(text: str) -> bool:
    return re.match(r"\s*(`[^`]*`\s*:?|\w+(\s*:|\s))\s*\w", text) is not None


class _Parser:
    """Reads one text from its begin to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            token = _TOKEN.match(text, at)
            if token is None:
                raise ValueError(f"there is no type at {text[at : at + 32]!r}")
            self._tokens.append(token[0].strip())
            at = token.end()
        self._at = 0

    def read_whole_type(self) -> DataType:
        kind = self._type()
        self._require_end()
        return kind

    def read_columns(self) -> StructType:
        fields = [self._column()] if self._tokens else []
        while self._take(","):
            fields.append(self._column())
        self._require_end()
        return types.StructType(fields)

    def _column(self) -> StructField:
        name = self._name()
        self._take(":")
        kind, is_nullable, metadata = self._type(), True, {}
        if self._take("not"):
            self._require("null")
            is_nullable = False
        if self._take("comment"):
            metadata["comment"] = _unquote(self._next())
        return types.StructField(name, kind, is_nullable, metadata)

    def _type(self) -> DataType:
        name = self._next().lower()
        if name in _PLAIN:
            return self._plain(name)
        readers: Mapping[str, Callable[[], DataType]] = {
            "array": self._array,
            "map": self._map,
            "struct": self._struct,
            "interval": self._interval,
            "time": lambda: make_type("TimeType", *(self._numbers() or [_MAX_TIME])),
            "varchar": lambda: types.VarcharType(*self._numbers()),
            **dict.fromkeys(("char", "character"), lambda: types.CharType(*self._numbers())),
            **dict.fromkeys(("decimal", "dec", "numeric"), self._decimal),
        }
        read = readers.get(name)
        if read is None:
            raise ValueError(f"{name!r} is not a type.{suggest(name, (*_PLAIN, *readers))}")
        try:
            return read()
        except TypeError as problem:  # the wrong number of numbers
            raise ValueError(f"{name!r} has wrong parameters: {problem}") from problem

    def _plain(self, name: str) -> DataType:
        if name == "string" and self._take("collate"):
            collation = self._name()
            return types.StringType() if collation.upper() == "UTF8_BINARY" else make_collated_string(collation)
        return _PLAIN[name]()

    def _decimal(self) -> DataType:
        kind = types.DecimalType(*self._numbers())
        if not 0 <= kind.scale <= kind.precision <= _MAX_DIGITS:
            raise ValueError(f"a decimal cannot have {kind.precision} digits, {kind.scale} of them after the point")
        return kind

    def _array(self) -> DataType:
        self._require("<")
        element = self._type()
        self._require(">")
        return types.ArrayType(element)

    def _map(self) -> DataType:
        self._require("<")
        key = self._type()
        self._require(",")
        value = self._type()
        self._require(">")
        return types.MapType(key, value)

    def _struct(self) -> StructType:
        self._require("<")
        fields: list[StructField] = []
        while not self._take(">"):
            if fields:
                self._require(",")
            fields.append(self._column())
        return types.StructType(fields)

    def _interval(self) -> DataType:
        first = self._next().lower()
        last = self._next().lower() if self._take("to") else ""
        for units, kind in ((_YEAR_MONTH, types.YearMonthIntervalType), (_DAY_TIME, types.DayTimeIntervalType)):
            if first in units and not last:
                return kind(units.index(first), units.index(first))
            if first in units and last in units and units.index(first) < units.index(last):
                return kind(units.index(first), units.index(last))
        raise ValueError(f"an interval from {first!r} to {last!r} is not a type")

    def _numbers(self) -> list[int]:
        """Return the numbers in parentheses; none if there are none."""
        found: list[int] = []
        if self._take("("):
            found.append(self._number())
            while self._take(","):
                found.append(self._number())
            self._require(")")
        return found

    def _number(self) -> int:
        text = self._next()
        if not text.isdecimal():
            raise ValueError(f"{text!r} is not a number")
        return int(text)

    def _name(self) -> str:
        name = self._next()
        if name.startswith("`"):
            return name[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", name) or name.isdecimal():
            raise ValueError(f"{name!r} is not a name")
        return name

    def _take(self, token: str) -> bool:
        """Go on if this is next."""
        found = self._at < len(self._tokens) and self._tokens[self._at].lower() == token
        self._at += found
        return found

    def _require(self, token: str) -> None:
        if not self._take(token):
            where = " ".join(self._tokens[self._at : self._at + 4])
            raise ValueError(f"{token!r} is missing {f'before {where!r}' if where else 'at the end'}")

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise ValueError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _require_end(self) -> None:
        if self._at < len(self._tokens):
            raise ValueError(f"{' '.join(self._tokens[self._at : self._at + 4])!r} is not part of a type")


def _unquote(text: str) -> str:
    if text[:1] not in {"'", '"'}:
        raise ValueError(f"{text!r} is not a text in quotes")
    return re.sub(rf"\\(.)|{text[0]}({text[0]})", r"\1\2", text[1:-1])
