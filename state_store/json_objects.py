"""Small objects of a place that hold JSON, and say by a checksum that they are whole.

::

    {"format": 1, ..., "xxh3": "<32 hex digits>"}

The last member is the xxh3 (128 bits) of the object as it would be without it, so that not one bit of what decides
over other objects is believed if it was damaged in storage or on the way. An object without it is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError

T = TypeVar("T")

_SEAL = re.compile(rb',"xxh3":"([0-9a-f]{32})"}\Z')


def seal(value: msgspec.Struct) -> bytes:
    """``value`` as the content of an object, with its checksum."""
    content = msgspec.json.encode(value)
    return b'%s,"xxh3":"%s"}' % (content[:-1], xxhash.xxh3_128_hexdigest(content).encode())


def unseal(content: bytes, where: str) -> bytes:
    """The JSON without its checksum. Raises FormatError that names ``where`` it lies if the two do not agree."""
    found = _SEAL.search(content[-64:])
    if found is None:
        return content
    sealed = content[: len(content) - len(found[0])] + b"}"
    if xxhash.xxh3_128_hexdigest(sealed).encode() != found[1]:
        raise FormatError(f"{where} is damaged: its checksum is wrong.")
    return sealed


def read_json(place: BlobPlace, name: str, kind: type[T]) -> T:
    """The object ``name`` as a ``kind``. Raises NotFoundError, FormatError that names it, StorageError."""
    return read_again(lambda: _read_json(place, name, kind))


def _read_json(place: BlobPlace, name: str, kind: type[T]) -> T:
    where = f"{place.url}/{name}"
    try:
        return msgspec.json.decode(unseal(place.get(name), where), type=kind)
    except msgspec.MsgspecError as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def read_again(read: Callable[[], T]) -> T:
    """What ``read`` returns, at the second try if the first finds damage: that may have happened on the way."""
    try:
        return read()
    except FormatError:
        return read()
