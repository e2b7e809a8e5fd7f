"""JSON that is stored or exchanged: read by the type it must have, or refused by where it lies."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError

T = TypeVar("T")

MAX_OBJECT_BYTES: Final = 1 << 20
"""Of a small object: what is larger was not written here, and is not read."""
MAX_LONG: Final = 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_LONG)]
"""A version, a size or a number of rows."""
Change = Annotated[int, msgspec.Meta(ge=-MAX_LONG, le=MAX_LONG)]
"""By how much a count changes."""

DAMAGE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: text that is none, lists too deep in each other."""


def decoded(content: bytes | memoryview, kind: type[T], where: str) -> T:
    """``content`` as a ``kind``. Raises FormatError that names ``where`` it lies."""
    try:
        return msgspec.json.decode(content, type=kind)
    except DAMAGE as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def read_json(place: BlobPlace, name: str, kind: type[T]) -> T:
    """The object ``name`` as a ``kind``. Raises NotFoundError, FormatError that names it, StorageError."""
    where = f"{place.url}/{name}"
    content = place.get(name, 0, MAX_OBJECT_BYTES + 1)
    if len(content) > MAX_OBJECT_BYTES:
        raise FormatError(f"{where} is damaged: it has more than {MAX_OBJECT_BYTES} bytes.")
    return decoded(content, kind, where)


def check_format(written_as: int, known: int, where: str) -> None:
    """Raise FormatError about ``where`` for a number of a format that this release does not read."""
    if written_as != known:
        raise FormatError(
            f"{where} has format {written_as}; this release reads {known}.",
            hint="Use the release that wrote it, or a newer one, on the driver and on every executor.",
        )
