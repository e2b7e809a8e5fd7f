"""State that is kept apart from its checkpoint (option ``remote``): its location, and the checkpoint's pointers to it.

The checkpoint has a small object, the pointer, in the folder of every store, for two reasons. It says where the state
is, and Spark's ``statestore`` source finds the partitions of a checkpoint by their folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace, place_at
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.sealed_objects import read_json
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Location, QueryId, StoreName, is_a

Place = TypeVar("Place", bound=BlobPlace)
POINTER_NAME = "remote.json"
DEFAULT_STORE = "default"
_ENCODED = "s3://"
"""The beginnings of the URLs that have %25 for a percent sign in a pointer, and only there."""


class _QueryMetadata(msgspec.Struct):
    id: QueryId


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a pointer: the place of a store's state."""

    place: Location


def query_id(checkpoint: BlobPlace) -> str:
    """Return Spark's id of the query of a checkpoint. Raises NotFoundError, FormatError, StorageError."""
    return read_json(checkpoint, "metadata", _QueryMetadata).id


def query_folder(remote: str, checkpoint: BlobPlace) -> str:
    """Return the folder of a query below ``remote``. Raises InvalidInputError, StorageError."""
    try:
        query = query_id(checkpoint)
    except (NotFoundError, FormatError) as problem:
        raise InvalidInputError(
            f"The option remote is set, but {checkpoint.url}/metadata does not have the id of the query.",
            hint="Spark writes that file when a query starts. Keep it with the checkpoint.",
        ) from problem
    return folder_of_query(remote, query)


def folder_of_query(remote: str, query: str) -> str:
    """Return the folder of a query below ``remote``, by the query's id. ``ownership`` says who owns it.

    Raises FormatError (no query can have this id, which may lead to another folder).
    """
    if not is_a(QueryId, query):
        raise FormatError(f"{query[:200]!r} cannot be the id of a query, and names no folder below {remote}.")
    return f"{remote.rstrip('/')}/{query}"


def folder_in(remote: str, query: str, identity: Identity) -> str:
    """Return the folder of a store of a query below ``remote``."""
    return f"{folder_of_query(remote, query)}/{store_folder(identity)}"


def point_to(place: BlobPlace, checkpoint: BlobPlace, identity: Identity) -> None:
    """Write the pointer to the state of a store into the checkpoint. Raises StorageError."""
    checkpoint.put(f"{store_folder(identity)}/{POINTER_NAME}", msgspec.json.encode(Pointer(_encode(place.url))))


def find_place(checkpoint: BlobPlace, identity: Identity, places: Callable[[str], Place], remote: str) -> Place:
    """Return the place of a store's state: from its pointer, else in the checkpoint. ``remote`` is the option.

    Raises StorageError, FormatError, InvalidInputError (``places`` is not set up to reach the place).
    """
    name = f"{store_folder(identity)}/{POINTER_NAME}"
    try:
        pointed = read_json(checkpoint, name, Pointer).place
    except NotFoundError:
        return places(f"{checkpoint.url}/{store_folder(identity)}")
    url = _decode(pointed, remote)
    try:
        place_at(url)
    except InvalidInputError as problem:
        raise FormatError(f"{checkpoint.url}/{name} is damaged: {problem.message}", hint=problem.hint) from problem
    return places(url)


def read_pointer(checkpoint: BlobPlace, identity: Identity, remote: str) -> str | None:
    """Return the location of a store's state in its pointer; None without one. ``remote`` is the option.

    Raises StorageError, FormatError.
    """
    try:
        return _decode(read_json(checkpoint, f"{store_folder(identity)}/{POINTER_NAME}", Pointer).place, remote)
    except NotFoundError:
        return None


def is_same_place(url: str, other: str) -> bool:
    """Return whether two URLs name one place. A bucket has one name for each scheme of S3, or of Azure."""
    return _with_one_scheme(url) == _with_one_scheme(other)


def _with_one_scheme(url: str) -> str:
    return re.sub(r"\Aabfs:", "abfss:", re.sub(r"\As3[an]:", "s3:", url.rstrip("/")))


def _encode(url: str) -> str:
    return url.replace("%", "%25") if url.startswith(_ENCODED) else url


def _decode(pointed: str, remote: str) -> str:
    """Return the URL that a pointer means. With a ``remote`` of ``s3a:``, an ``s3:`` URL below it becomes ``s3a:``."""
    if not pointed.startswith(_ENCODED):
        return pointed
    url = unquote(pointed)
    as_s3a = url.replace("s3:", "s3a:", 1)
    return as_s3a if as_s3a.startswith(f"{remote.rstrip('/')}/") else url


def is_store_name(name: str) -> bool:
    """Return whether ``name`` can name a store, and so a folder."""
    return is_a(StoreName, name)


def store_folder(identity: Identity) -> str:
    """Return the folder in a checkpoint where Spark keeps the state of a store."""
    folder = f"state/{identity.operator}/{identity.partition}"
    return folder if identity.name == DEFAULT_STORE else f"{folder}/{identity.name}"
