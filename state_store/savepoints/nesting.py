"""Find out whether one folder lies inside another, however the two are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from pyspark_ckpt.state_store.blobs import BlobPlace, names_scheme
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from pyspark_ckpt.state_store.format.remote import store_folder

MAX_FOLDERS_ABOVE = 32
"""How many folders above a target are looked into, the nearest first: each takes two requests, or four at most."""

_S3 = re.compile(r"s3[an]?://")


def is_within(place: BlobPlace, outer_url: str) -> bool:
    """Return whether a place is the folder at ``outer_url`` or lies below it, by their names and by links on a disk."""
    inner, outer = _plain(place.url), _plain(outer_url)
    return f"{inner}/".startswith(f"{outer}/")


def refuse_nested(place: BlobPlace, checkpoint: Checkpoint, what: str) -> None:
    """Raise InvalidInputError if ``place``, the target of ``what``, lies inside the checkpoint or its state.

    The same if the checkpoint lies inside ``place``, and as ``refuse_inside_another``. Raises StorageError.
    """
    for url in (checkpoint.place.url, *_roots_of_state(checkpoint)):
        if is_within(place, url):
            raise InvalidInputError(
                f"{place.url} is inside {url}, which belongs to the query: {what} must lie outside of it.",
                hint="Name a new folder elsewhere, such as one next to the checkpoint.",
            )
    if is_within(checkpoint.place, place.url):
        raise InvalidInputError(
            f"{checkpoint.place.url} is inside {place.url}: {what} cannot contain its own checkpoint.",
            hint="Name a new folder elsewhere, such as one next to the checkpoint.",
        )
    refuse_inside_another(place, checkpoint.workplace, what)


def refuse_inside_another(place: BlobPlace, workplace: Workplace, what: str) -> None:
    """Raise InvalidInputError if ``place``, the target of ``what``, lies inside a checkpoint or a savepoint.

    Unfinished ones count. The folders above are looked into at the same time; one that this user may not read is left
    out. Raises StorageError.
    """
    above = list(islice(_list_above(place.url), MAX_FOLDERS_ABOVE))
    with ThreadPoolExecutor(MAX_FOLDERS_ABOVE) as pool:
        kinds = list(pool.map(lambda url: _find_kind(workplace.place(url)), above))
    for url, kind in zip(above, kinds, strict=True):
        if kind is not None:
            raise InvalidInputError(
                f"{place.url} is inside {url}, which is {kind.value}: {what} must lie outside of it.",
                hint=f"Name a new folder elsewhere, such as one next to {url}.",
            )


def _list_above(url: str) -> Iterator[str]:
    """Yield the folders above a folder, the nearest first; on a disk, those that its links lead to."""
    if not names_scheme(url):
        yield from map(str, Path(url).resolve().parents)
        return
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    parts = path.strip("/").split("/")
    for number in reversed(range(len(parts) if path else 0)):
        yield f"{scheme}://{authority}/{'/'.join(parts[:number])}"


def _find_kind(place: BlobPlace) -> FolderKind | None:
    """Return what a folder is; None, too, if this user may not look into it."""
    try:
        return find_kind(place)
    except StorageError as problem:
        if problem.is_denied:
            return None
        raise


def _roots_of_state(checkpoint: Checkpoint) -> list[str]:
    """Return where the query's state is, if it is kept apart from the checkpoint; else an empty list."""
    for _, identity in checkpoint.stores():
        url = checkpoint.find_place(identity).url
        root = url.removesuffix(f"/{store_folder(identity)}")
        return [] if root == checkpoint.place.url else [root]
    return []


def _plain(url: str) -> str:
    if not names_scheme(url):
        return str(Path(url).resolve()).rstrip("/")
    return _S3.sub("s3://", url).rstrip("/")
