"""Read JSON that is stored or exchanged. Every byte is validated; malformed input is rejected with its location.

An object that decides over other objects ends with a checksum::

    {"format": 1, ..., "xxh3": "<32 hex digits>"}

The last member is the xxh3 (128 bits) of the object without that member. Damage to even one bit, in storage or in
transit, is detected.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import xxhash

from pyspark_ckpt.state_store.errors import FormatError

T = TypeVar("T")

MAX_LONG: Final = 2**63 - 1

DAMAGE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises for malformed bytes, such as text that is not Unicode or lists that are nested too deep."""

_KNOWN: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_LEARNING: Final = threading.Lock()
_SEAL = re.compile(rb',"xxh3":"([0-9a-f]{32})"}\Z')


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
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def read_again(read: Callable[[], T]) -> T:
    """Return what ``read`` returns. Damage is read once more, because it may have happened in transit."""
    try:
        return read()
    except FormatError:
        return read()


class FormatOnly(msgspec.Struct):
    """What is decoded first of an object that has a format: the rest may have other members in another one."""

    format: int


def check_format_in(content: bytes | memoryview, known: int, where: str) -> None:
    """Do as ``check_format``, for an object that has a format, before anything else of it is decoded."""
    check_format(decode_as(content, FormatOnly, where).format, known, where)


def check_format(written_as: int, known: int, where: str) -> None:
    """Raise FormatError about ``where`` if this release does not read its format number."""
    if written_as != known:
        raise FormatError(
            f"{where} has format {written_as}, but this release reads format {known}.",
            hint="Use the release that wrote it, or a newer one, on the driver and on every executor.",
        )
