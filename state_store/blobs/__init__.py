"""Places that keep blobs durably, one module per kind of place. Nothing else knows where state is stored."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark_ckpt.state_store.blobs.local import LocalPlace
from pyspark_ckpt.state_store.blobs.place import Blob, BlobPlace, Sink
from pyspark_ckpt.state_store.errors import InvalidInputError

__all__ = ["Blob", "BlobPlace", "LocalPlace", "Sink", "place_at"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def place_at(uri: str) -> BlobPlace:
    """Return the place behind a plain absolute path or a ``file:`` URI (its path may be percent-encoded).

    Raises InvalidInputError that names the scheme for every other kind of place.
    """
    if _SCHEME.match(uri) is None:
        return LocalPlace(_absolute(uri, uri))
    parts = urlsplit(uri)
    if parts.scheme.lower() != "file":
        raise InvalidInputError(
            f"State cannot be stored at {uri!r}: the scheme {parts.scheme!r} is not supported.",
            hint="Use a checkpointLocation on a local or shared file system (file:/...).",
        )
    if parts.netloc not in ("", "localhost"):
        raise InvalidInputError(
            f"State cannot be stored at {uri!r}: a file: URI may not name a host ({parts.netloc!r}).",
            hint="Write file:///path with three slashes.",
        )
    return LocalPlace(_absolute(unquote(uri.partition(":")[2].removeprefix("//" + parts.netloc)), uri))


def _absolute(path: str, given: str) -> Path:
    if not path.startswith("/"):
        raise InvalidInputError(f"State cannot be stored at {given!r}: the path is not absolute.")
    return Path("/" + path.lstrip("/"))
