"""The last batch whose plan a restore carried over: without this record, nobody would miss the last plan."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.names import CARRIED_NAME, CHECKPOINT_FOLDER
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import Count, check_format_in, decode_as, seal, unseal

CARRIED_FORMAT = 1
CARRIED_FILE = f"{CHECKPOINT_FOLDER}/{CARRIED_NAME}"
NONE_CARRIED = -1


class _Carried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``last``: the last batch whose plan was carried over."""

    format: int
    last: Count


def write_last_carried(last: int) -> bytes:
    """Return the content of the file."""
    return seal(_Carried(CARRIED_FORMAT, last))


def require_last_carried(content: bytes, where: str) -> None:
    """Raise FormatError that names ``where`` unless ``content`` is valid."""
    sealed = unseal(content, where)
    check_format_in(sealed, CARRIED_FORMAT, where)
    decode_as(sealed, _Carried, where)


def read_last_carried(place: BlobPlace) -> int:
    """Return the last batch whose plan was carried over, whether it has run or not; -1 if none is recorded.

    Raises FormatError, StorageError.
    """
    try:
        return read_sealed(place, CARRIED_FILE, _Carried, known=CARRIED_FORMAT).last
    except NotFoundError:
        return NONE_CARRIED
