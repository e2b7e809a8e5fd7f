"""JSON that is stored or exchanged: read by the type it must have, or refused by where it lies.

An object of ours that decides over others says by a checksum that it is whole::

    {"format": 1, ..., "xxh3": "<32 hex digits>"}

The last member is the xxh3 (128 bits) of the object as it would be without it, so that not one bit of what decides
over other objects is believed if it was damaged in storage or on the way.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
import xxhash

from pyspark_ckpt.state_store.errors import FormatError

T = TypeVar("T")

MAX_LONG: Final = 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_LONG)]
"""A version, a size or a number of rows."""
Change = Annotated[int, msgspec.Meta(ge=-MAX_LONG, le=MAX_LONG)]
"""By how much a count changes."""

DAMAGE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: text that is none, lists too deep in each other."""

_KNOWN: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_LEARNING: Final = threading.Lock()
_SEAL = re.compile(rb',"xxh3":"([0-9a-f]{32})"}\Z')


def seal(value: msgspec.Struct) -> bytes:
    """``value`` as the content of an object, with its checksum."""
    return seal_json(msgspec.json.encode(value))


def seal_json(content: bytes) -> bytes:
    """A JSON object with its checksum."""
    return b'%s,"xxh3":"%s"}' % (content[:-1], xxhash.xxh3_128_hexdigest(content).encode())


def unseal(content: bytes, where: str) -> bytes:
    """The JSON without its checksum. Raises FormatError that names ``where`` it lies if there is none, or another."""
    found = _SEAL.search(content[-64:])
    if found is None:
        raise FormatError(f"{where} is damaged: it does not end with its checksum.")
    sealed = content[: len(content) - len(found[0])] + b"}"
    if xxhash.xxh3_128_hexdigest(sealed).encode() != found[1]:
        raise FormatError(f"{where} is damaged: its checksum is wrong.")
    return sealed


def unseal_local(content: bytes, where: str) -> bytes:
    """The JSON of a local file without its checksum; all of it if it has none, as what earlier releases have left.

    Where one bit has changed, that is in the JSON, which raises FormatError, or in the checksum, without which the JSON
    is still what was written.
    """
    return unseal(content, where) if _SEAL.search(content[-64:]) else content


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Decodes a ``kind``, in any thread.

    msgspec looks into a type when it is first decoded, and two threads that do so at the same time crash the process.
    """
    found = _KNOWN.get(kind)
    if found is None:
        with _LEARNING:
            found = _KNOWN.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def decode_as(content: bytes | memoryview, kind: type[T], where: str) -> T:
    """``content`` as a ``kind``. Raises FormatError that names ``where`` it lies."""
    try:
        return decoder(kind).decode(content)
    except DAMAGE as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def read_again(read: Callable[[], T]) -> T:
    """What ``read`` returns, at the second try if the first finds damage: that may have happened on the way."""
    try:
        return read()
    except FormatError:
        return read()


class FormatOnly(msgspec.Struct):
    """What is decoded first of an object that has a format: the rest may have other members in another one."""

    format: int


def check_format(written_as: int, known: int, where: str) -> None:
    """Raise FormatError about ``where`` for a number of a format that this release does not read."""
    if written_as != known:
        raise FormatError(
            f"{where} has format {written_as}; this release reads {known}.",
            hint="Use the release that wrote it, or a newer one, on the driver and on every executor.",
        )
