"""Find out whether one folder lies inside another, however the two are named."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from pyspark_ckpt.state_store.blobs import BlobPlace, names_scheme
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import describe_kind, find_open_kind, list_above
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.remote import store_folder

MAX_FOLDERS_ABOVE = 32
"""How many folders above a target are checked, the nearest first: each takes two requests, or four at most."""

_S3 = re.compile(r"s3[an]?://")
_AZURE = re.compile(r"abfss?://")


def is_within(place: BlobPlace, outer_url: str) -> bool:
    """Return whether a place is the folder at ``outer_url`` or lies below it, by their names and by links on a disk."""
    inner, outer = _plain(place.url), _plain(outer_url)
    return f"{inner}/".startswith(f"{outer}/")


def refuse_nested(place: BlobPlace, checkpoint: Checkpoint, what: str) -> None:
    """Raise InvalidInputError if ``place``, the target of ``what``, lies inside the checkpoint or its state.

    The same if the checkpoint lies inside ``place``, and as ``refuse_inside_another``. A savepoint counts as a
    checkpoint. Raises StorageError.
    """
    for url in (checkpoint.place.url, *_roots_of_state(checkpoint)):
        if is_within(place, url):
            raise InvalidInputError(
                f"{place.url} is inside {url}, which must not change: {what} must lie outside it.",
                hint="Name a new folder elsewhere, such as one next to the checkpoint.",
            )
    if is_within(checkpoint.place, place.url):
        raise InvalidInputError(
            f"{checkpoint.place.url} is inside {place.url}: {what} cannot contain its source.",
            hint="Name a new folder elsewhere, such as one next to the checkpoint.",
        )
    refuse_inside_another(place, checkpoint.workplace, what)


def refuse_nested_state(folder: BlobPlace, source: Checkpoint, target: BlobPlace) -> None:
    """Raise InvalidInputError if ``folder``, for the state of a new checkpoint ``target``, lies in a wrong place.

    It must not lie inside the ``source``, its state, or the target, nor they inside it. As ``refuse_inside_another``,
    too. Raises StorageError.
    """
    hint = "Name a folder elsewhere in the option remote."
    if is_within(folder, target.url) and is_within(target, folder.url):
        raise InvalidInputError(f"The state would be in {folder.url}, which is the new checkpoint itself.", hint=hint)
    for url in (source.place.url, *_roots_of_state(source), target.url):
        other = source.workplace.place(url)
        if other.url == folder.url:  # the state of a query of the same id, which is refused later
            continue
        if is_within(folder, other.url):
            raise InvalidInputError(f"The state would be in {folder.url}, which is inside {other.url}.", hint=hint)
        if is_within(other, folder.url):
            raise InvalidInputError(f"The state would be in {folder.url}, and {other.url} is inside it.", hint=hint)
    refuse_inside_another(folder, source.workplace, "the state (option remote)")


def refuse_inside_another(place: BlobPlace, workplace: Workplace, what: str) -> None:
    """Raise InvalidInputError if ``place``, the target of ``what``, lies in a checkpoint, a savepoint or state.

    Unfinished ones count. The folders above are checked in parallel, except those that this user may not read. Raises
    StorageError.
    """
    above = list(islice(list_above(place.url), MAX_FOLDERS_ABOVE))
    with ThreadPoolExecutor(MAX_FOLDERS_ABOVE) as pool:
        kinds = list(pool.map(lambda url: find_open_kind(workplace.place(url)), above))
    for url, kind in zip(above, kinds, strict=True):
        if kind is not None:
            raise InvalidInputError(
                f"{place.url} is inside {url}, which is {describe_kind(workplace.place(url), kind)}: {what} must lie "
                "outside it.",
                hint=f"Name a new folder elsewhere, such as one next to {url}.",
            )


def _roots_of_state(checkpoint: Checkpoint) -> list[str]:
    """Return the URLs of the query's state if it is kept apart from the checkpoint; else an empty list."""
    if not checkpoint.has_stores:  # a savepoint has its state in it
        return []
    for _, identity in checkpoint.stores():
        url = checkpoint.find_place(identity).url
        root = url.removesuffix(f"/{store_folder(identity)}")
        return [] if root == checkpoint.place.url else [root]
    return []


def _plain(url: str) -> str:
    if not names_scheme(url):
        return os.path.realpath(url).rstrip("/")
    return _AZURE.sub("abfss://", _S3.sub("s3://", url)).rstrip("/")
