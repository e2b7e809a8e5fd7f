"""Small objects of a place that hold JSON."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError

T = TypeVar("T")


def read_json(place: BlobPlace, name: str, kind: type[T]) -> T:
    """The object ``name`` as a ``kind``. Raises NotFoundError, FormatError that names it, StorageError."""
    try:
        return msgspec.json.decode(place.get(name), type=kind)
    except msgspec.MsgspecError as problem:
        raise FormatError(f"{place.url}/{name} is damaged: {problem}.") from problem
