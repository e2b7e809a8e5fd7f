"""Find out whether one folder lies inside another, however the two are named."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.state_store.blobs import BlobPlace, names_scheme
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.remote import store_folder

_S3 = re.compile(r"s3[an]?://")


def is_within(place: BlobPlace, outer_url: str) -> bool:
    """Return whether a place is the folder at ``outer_url`` or lies below it, by their names and by links on a disk."""
    inner, outer = _plain(place.url), _plain(outer_url)
    return f"{inner}/".startswith(f"{outer}/")


def refuse_nested(place: BlobPlace, checkpoint: Checkpoint, what: str) -> None:
    """Raise InvalidInputError if ``place``, the target of ``what``, lies inside the checkpoint or its state.

    The same if the checkpoint lies inside ``place``. Raises StorageError.
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
