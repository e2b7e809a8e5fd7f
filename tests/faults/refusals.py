"""Whether a place refuses a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.errors import StorageError

if TYPE_CHECKING:
    from pyspark_ckpt.state_store.blobs import BlobPlace


def is_refused(place: BlobPlace, name: str = "object") -> bool:
    """Whether an object, which is there, cannot be read."""
    try:
        place.get(name)
    except StorageError:
        return True
    return False
