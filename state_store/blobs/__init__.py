"""Places that keep blobs durably, one module per kind of place. Nothing else knows where state is stored."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark_ckpt.state_store.blobs.local import LocalPlace
from pyspark_ckpt.state_store.blobs.place import Blob, BlobPlace, Sink, is_unstorable
from pyspark_ckpt.state_store.blobs.settings import S3Settings
from pyspark_ckpt.state_store.errors import InvalidInputError

__all__ = ["Blob", "BlobPlace", "LocalPlace", "S3Settings", "Sink", "place_at"]

_BOTO3S_OWN = S3Settings()
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


_S3_SCHEMES = ("s3", "s3a", "s3n")


def place_at(uri: str, s3: S3Settings = _BOTO3S_OWN) -> BlobPlace:
    """Return the place behind an absolute path, a ``file:`` URI (which may be percent-encoded), or ``s3://bucket/prefix``.

    ``s3a:`` and ``s3n:``, Hadoop's names for it, are S3 as well.

    Raises InvalidInputError that names the scheme for every other kind of place.
    """
    if _SCHEME.match(uri) is None:
        return LocalPlace(_absolute(uri, uri))
    try:
        parts = urlsplit(uri)
    except ValueError as problem:
        raise InvalidInputError("State cannot be stored at a place whose URI cannot be read.") from problem
    if "@" in parts.netloc:  # what is in front of it may be a secret: it is not shown
        raise InvalidInputError(
            f"State cannot be stored at a {parts.scheme}: URI that holds credentials.",
            hint="Give them to the executors in a way that boto3 finds: docs/deploying.md.",
        )
    if parts.scheme.lower() in _S3_SCHEMES:
        if not parts.netloc:
            raise InvalidInputError(
                f"State cannot be stored at {uri!r}: it names no bucket.", hint="s3://bucket/prefix"
            )
        from pyspark_ckpt.state_store.blobs.s3 import S3Place  # noqa: PLC0415 - boto3 is loaded where it is needed

        return S3Place(parts.netloc, unquote(uri.partition("://")[2].partition("/")[2]), s3)
    if parts.scheme.lower() != "file":
        raise InvalidInputError(
            f"State cannot be stored at {uri!r}: the scheme {parts.scheme!r} is not supported.",
            hint="Use a checkpointLocation on a local or shared file system (file:/...) or in S3 (s3a://...).",
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
    if is_unstorable(path):
        raise InvalidInputError(f"State cannot be stored at {given!r}: no file can have this name.")
    return Path("/" + path.lstrip("/"))
