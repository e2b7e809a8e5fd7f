"""Read JSON that is stored or exchanged. Every byte is validated; malformed input is rejected with its location.

A stored object may be crafted. Names in it become parts of paths; counts in it are allocated or looped over. Therefore
each member of a stored object has one of the types below, with a pattern or bounds, and objects of this package refuse
unknown members. There is no other list of these types. Code that makes a path from such a value of another origin asks
``is_a`` first.

An object that decides over other objects ends with a checksum::

    {"format": 1, ..., "xxh3": "<32 hex digits>"}

The last member is the xxh3 (128 bits) of the object without that member. Damage to even one bit, in storage or in
transit, is detected.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
import xxhash

from pyspark_ckpt.state_store.errors import FormatError

T = TypeVar("T")

MAX_LONG: Final = 2**63 - 1
MAX_PARTITIONS: Final = 1 << 20
MAX_NAME: Final = 1 << 16
MAX_LOCATION: Final = 1 << 13

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_LONG)]
"""A version, a size, a number of rows."""
Change = Annotated[int, msgspec.Meta(ge=-MAX_LONG, le=MAX_LONG)]
"""By how much a count changes."""
Partitions = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITIONS)]
"""The number of partitions, or the number of one of them. A query without state has none."""
OperatorNumber = Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
"""The number of an operator, which is also the name of a folder."""
StateNumber = Annotated[int, msgspec.Meta(ge=1, le=0xFFFE)]
"""The number of a state in the keys of its rows. ``StoreMeta`` checks which kind of state may have it."""
Counter = Annotated[int, msgspec.Meta(ge=0, le=0x3FFF)]
"""How many states of one kind a store has ever had."""
KeyCount = Annotated[int, msgspec.Meta(ge=-1, le=MAX_LONG)]
"""How many keys Spark's RocksDB provider has counted; -1 if it does not count."""
Family = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF)]
"""The number of a state in a store of Spark's RocksDB provider: a signed short."""
Groups = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
"""A key group, or the number of key groups."""
UnixMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000)]
"""A time in ms since 1970, up to the end of the year 9999."""
UnixSeconds = Annotated[float, msgspec.Meta(ge=-MAX_LONG, le=MAX_LONG)]
"""A time in seconds since 1970."""

Xxh3 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""An XXH3 (128 bits), or a sum of them."""
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
RandomId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
"""32 hexadecimal digits; empty in objects of earlier builds."""
CommitId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.]{1,128}\Z")]
"""The id of a commit: a part of the names of objects, without ``-``."""
SparkId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,128}\Z")]
"""The id of a commit of this store or of one of Spark's, which have ``-``: a part of the names of objects."""
QueryId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")]
"""The id of a query, which is also the name of a folder."""
RunId = Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{0,256}\Z")]
"""The id of a run of a query; empty where earlier builds wrote it for tasks that did not tell their query."""
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
"""A name that users or Spark choose, such as a state's: it is shown and compared, and is no part of a path."""
Words = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
"""Text for people."""
Location = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00]*\Z", max_length=MAX_LOCATION)]
"""A URL or a path of a folder. Code that acts there first checks who owns the folder."""

DAMAGE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The errors of msgspec for malformed bytes, such as text that is not Unicode or lists that are nested too deep."""

_KNOWN: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_LEARNING: Final = threading.Lock()
_PATTERN = re.compile(r"matching regex '.*'(?= - at |\Z)", re.DOTALL)
"""msgspec's words for a text that does not match its pattern, which tell a user nothing."""
_SEAL = re.compile(rb',"xxh3":"([0-9a-f]{32})"}\Z')


def is_a(kind: Any, value: str) -> bool:  # noqa: ANN401 - a type with its pattern
    """Return whether ``value`` is of ``kind``, one of those above that have a pattern."""
    meta: msgspec.Meta = get_args(kind)[1]
    is_short = meta.max_length is None or len(value) <= meta.max_length
    return is_short and re.search(str(meta.pattern), value) is not None


def seal(value: msgspec.Struct) -> bytes:
    """Return ``value`` as the content of an object, with its checksum."""
    return seal_json(msgspec.json.encode(value))


def seal_json(content: bytes) -> bytes:
    """Return a JSON object with its checksum added."""
    return b'%s,"xxh3":"%s"}' % (content[:-1], xxhash.xxh3_128_hexdigest(content).encode())


def unseal(content: bytes, where: str) -> bytes:
    """Return the JSON without its checksum. Raises FormatError that names ``where`` (missing or wrong checksum)."""
    found = _SEAL.search(content[-64:])
    if found is None:
        raise FormatError(f"{where} is damaged: it does not end with its checksum.")
    sealed = content[: len(content) - len(found[0])] + b"}"
    if xxhash.xxh3_128_hexdigest(sealed).encode() != found[1]:
        raise FormatError(f"{where} is damaged: its checksum is wrong.")
    return sealed


def unseal_local(content: bytes, where: str) -> bytes:
    """Return the JSON of a local file without its checksum. Files of earlier releases have none and are returned whole.

    One changed bit in the JSON raises FormatError. One in the checksum either raises FormatError or leaves the JSON as
    it was written.
    """
    return unseal(content, where) if _SEAL.search(content[-64:]) else content


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of ``kind``, which any thread may use.

    msgspec analyses a type on first use. Two threads that do so at the same time crash the process.
    """
    found = _KNOWN.get(kind)
    if found is None:
        with _LEARNING:
            found = _KNOWN.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def decode_as(content: bytes | memoryview, kind: type[T], where: str) -> T:
    """Return ``content`` as a ``kind``. Raises FormatError that names ``where``."""
    try:
        return decoder(kind).decode(content)
    except DAMAGE as problem:
        raise FormatError(f"{where} is damaged: {_PATTERN.sub('of another form', str(problem))}.") from problem


def read_again(read: Callable[[], T]) -> T:
    """Return what ``read`` returns. Damage is read once more, because it may have happened in transit."""
    try:
        return read()
    except FormatError:
        return read()


class FormatOnly(msgspec.Struct):
    """The part that is decoded first of an object with a format: in another format, the rest may have other members."""

    format: int


def check_format_in(content: bytes | memoryview, known: int, where: str) -> None:
    """Do as ``check_format``, for an object with a format, before the rest of it is decoded."""
    check_format(decode_as(content, FormatOnly, where).format, known, where)


def check_format(written_as: int, known: int, where: str) -> None:
    """Raise FormatError about ``where`` if this release does not read its format number."""
    if written_as != known:
        raise FormatError(
            f"{where} has format {written_as}, but this release reads format {known}.",
            hint="Use the release that wrote it, or a newer one, on the driver and on every executor.",
        )
