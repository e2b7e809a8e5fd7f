"""Reads small JSON objects of a place. Each is read as a whole and checked; errors name where it is."""

from __future__ import annotations

from typing import Final, TypeVar

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import check_format_in, decode_as, read_again, unseal

T = TypeVar("T")

MAX_OBJECT_BYTES: Final = 1 << 20
"""Most bytes of a small object. A larger one was not written by this engine and is not read."""


def read_sealed(
    place: BlobPlace, name: str, kind: type[T], most_bytes: int = MAX_OBJECT_BYTES, *, known: int | None = None
) -> T:
    """Read the object ``name``, which has a checksum. Raises NotFoundError, FormatError that names it, StorageError.

    ``known``: the ``format`` that it must have, if objects of this kind have one. Other formats may have other members.
    """
    where = f"{place.url}/{name}"

    def read() -> T:
        content = unseal(_content(place, name, where, most_bytes), where)
        if known is not None:
            check_format_in(content, known, where)
        return decode_as(content, kind, where)

    return read_again(read)


def read_json(place: BlobPlace, name: str, kind: type[T]) -> T:
    """Read the object ``name``, without a checksum. Raises NotFoundError, FormatError that names it, StorageError."""
    where = f"{place.url}/{name}"
    return read_again(lambda: decode_as(_content(place, name, where, MAX_OBJECT_BYTES), kind, where))


def _content(place: BlobPlace, name: str, where: str, most_bytes: int) -> bytes:
    content = place.get(name, 0, most_bytes + 1)
    if len(content) > most_bytes:
        raise FormatError(f"{where} is damaged: it has more than {most_bytes} bytes.")
    return content
