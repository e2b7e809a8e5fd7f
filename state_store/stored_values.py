"""The kinds of values in stored JSON: each has a pattern or bounds, which its decoder checks. There is no other list.

A stored object may be crafted. What it names becomes part of a path, what it counts is allocated or looped over: so a
member of a stored object has one of these types, and an object of this package refuses members that it does not know.
Whoever makes a path of such a value from elsewhere asks ``is_a`` first.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, get_args

import msgspec

from pyspark_ckpt.state_store.json_objects import MAX_LONG

MAX_PARTITIONS: Final = 1 << 20
MAX_NAME: Final = 1 << 16
MAX_LOCATION: Final = 1 << 13

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_LONG)]
"""A version, a size, a number of rows."""
Change = Annotated[int, msgspec.Meta(ge=-MAX_LONG, le=MAX_LONG)]
"""By how much a count changes."""
Partitions = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITIONS)]
"""How many partitions there are, or the number of one of them. A query without state has none."""
OperatorNumber = Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
"""The number of an operator, which is also the name of a folder."""
StateNumber = Annotated[int, msgspec.Meta(ge=1, le=0xFFFE)]
"""The number of a state in the keys of its rows. ``StoreMeta`` checks which of these can be of which state."""
Counter = Annotated[int, msgspec.Meta(ge=0, le=0x3FFF)]
"""How many states of one kind a store has ever had."""
KeyCount = Annotated[int, msgspec.Meta(ge=-1, le=MAX_LONG)]
"""How many keys Spark's RocksDB provider has counted; -1 if it does not count."""
Family = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF)]
"""The number of a state in a store of Spark's RocksDB provider: a signed short."""
Groups = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
"""A key group, or how many of them there are."""
UnixMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000)]
"""A time in ms since 1970, up to the end of the year 9999."""
UnixSeconds = Annotated[float, msgspec.Meta(ge=-MAX_LONG, le=MAX_LONG)]
"""A time in seconds since 1970."""

Xxh3 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""An XXH3 (128 bits), or a sum of them."""
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
RandomId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
"""32 hexadecimal digits; empty in what earlier builds wrote."""
CommitId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.]{1,128}\Z")]
"""The id of a commit: a part of the names of objects, without ``-``."""
SparkId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,128}\Z")]
"""The id of a commit of this store or of one of Spark's, which have ``-``: a part of the names of objects."""
QueryId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")]
"""The id of a query, which is also the name of a folder."""
RunId = Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{1,256}\Z")]
"""The id of a run of a query."""
StoreName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}\Z")]
"""The name of a store, which is also the name of a folder."""
SourceName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_]{1,255}\Z")]
"""The name that a user gave to a source, which is also the name of a folder."""
ClassName = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z_$][A-Za-z0-9_.$]{0,511})?\Z")]
"""The name of a class of the JVM; empty for none."""
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\x00]{1,255}\Z")]
"""The name of a file, without a folder."""
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\x00]+"
ObjectName = Annotated[str, msgspec.Meta(pattern=rf"\A{_PART}(?:/{_PART})*\Z", max_length=4096)]
"""The name of an object below its place: it leads nowhere else."""
TableObject = Annotated[str, msgspec.Meta(pattern=r"\Asst/[0-9a-f]{64}-[0-9a-f]{8}\.sst\Z")]
"""The object of a table file of a snapshot."""
DeltaFileName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{4}\.sst\Z")]
"""A table file inside a delta."""

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
"""A name that users or Spark choose, such as that of a state: it is shown and compared, and no part of a path."""
Words = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
"""Text for people."""
Location = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00]*\Z", max_length=MAX_LOCATION)]
"""A URL or a path of a folder. What is done there asks first whose the folder is."""


def is_a(kind: Any, value: str) -> bool:  # noqa: ANN401 - a type with its pattern
    """Return whether ``value`` is of ``kind``, one of those above that have a pattern."""
    meta: msgspec.Meta = get_args(kind)[1]
    is_short = meta.max_length is None or len(value) <= meta.max_length
    return is_short and re.search(str(meta.pattern), value) is not None
