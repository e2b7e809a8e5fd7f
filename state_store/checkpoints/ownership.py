"""Which checkpoint owns the folder of a query below ``remote``: exactly one, however many copies of it there are.

Copies of a checkpoint have the same query id, and therefore the same folder. If two wrote there, they would count each
other's commits and delete each other's versions. The folder therefore has an owner object, created only if absent::

    <remote>/<query id>/owner.json    {"format": 1, "checkpoint": <URL>, "real": <path without links>, "xxh3": ...}

The first checkpoint that writes owns the folder for good, and every other one is refused. A folder filled by an earlier
release has no owner yet: the first checkpoint that comes becomes its owner. A moved checkpoint looks like a copy,
because the original may be gone or only out of sight from here. A user who knows that it is gone deletes the object.

A service that ignores conditions lets several checkpoints create the object, and each would find its own. On such a
service each checkpoint first puts a claim, ``owner-<32 hex digits>.claim`` with the same content, and lists the folder.
If it sees the claim of another checkpoint, it puts no owner. Otherwise it checks once more whether there is an owner,
creates the object, and deletes its claim. Of two checkpoints, the one with the later claim therefore sees the other's
claim, or the owner that the other created.

The location of one checkpoint may be spelled in several ways: see ``Owner.is_same``.

A pointer in a checkpoint may name any folder, and a link may lead to any. Whoever deletes objects of a store first
calls ``require_own_state``.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace, find_options, names_scheme
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.display import write_rescale
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.remote import POINTER_NAME, is_same_place, store_folder
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Location, check_format, seal

OWNER_NAME = "owner.json"
OWNER_FORMAT = 1
CLAIM = "owner-"
CLAIM_S = 3600.0
"""A claim older than one's own by this much was left by a process that died."""

_S3 = re.compile(r"\As3[an]?://")
_AZURE = re.compile(r"\Aabfss?://")
_HDFS_DEFAULT_PORT = ":8020"


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the object. ``real``: the path without links if the checkpoint is in a file system; else empty."""

    format: int
    checkpoint: Location
    real: Location = ""

    def is_same(self, other: Owner) -> bool:
        """Return whether both name one checkpoint, as seen from this machine, which can reach ``other``.

        Links in a path may lead elsewhere on another machine. Equal paths therefore mean the same checkpoint, unless
        the owner's real path also exists here: then a link was changed to a copy.
        """
        if self.real and other.real:
            if self.real == other.real:
                return True
            return self.checkpoint == other.checkpoint and not Path(self.real, "metadata").exists()
        return _without_default(self.checkpoint, other.checkpoint) == _without_default(
            other.checkpoint, self.checkpoint
        )


def describe(checkpoint: BlobPlace) -> Owner:
    """Return ``checkpoint`` as an owner."""
    url = checkpoint.url
    if url.startswith("/"):
        return Owner(OWNER_FORMAT, os.path.normpath(url), os.path.realpath(url))
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if _S3.match(url):
        return Owner(OWNER_FORMAT, f"s3://{rest.rstrip('/')}")
    if _AZURE.match(url):
        return Owner(OWNER_FORMAT, f"abfss://{rest.rstrip('/')}")
    authority = authority.lower().removesuffix(_HDFS_DEFAULT_PORT)
    return Owner(OWNER_FORMAT, f"{scheme}://{authority}{slash}{path.rstrip('/')}")


def claim(folder: BlobPlace, checkpoint: BlobPlace, remote: str) -> None:
    """Make ``checkpoint`` the owner of its query's folder below ``remote`` if the folder has no owner yet; durable.

    Raises InvalidInputError, which says what to do, if another checkpoint owns it; ConflictError if another is just
    becoming its owner; FormatError, StorageError.
    """
    own = describe(checkpoint)
    owner = _read(folder)
    if owner is None:
        with _alone(folder, own):
            if _read(folder) is None:
                folder.put_if_absent(OWNER_NAME, seal(own))
        owner = _read(folder)
    if owner is None:
        raise ConflictError(
            f"{folder.url}/{OWNER_NAME} was deleted while {checkpoint.url} was becoming the owner of that folder.",
            hint="Start the query again.",
            retryable=True,
        )
    _require(owner, own, folder, checkpoint, remote)


@contextmanager
def _alone(folder: BlobPlace, own: Owner) -> Iterator[None]:
    """Keep other checkpoints from creating the owner of ``folder``, even if its service ignores conditions."""
    if is_exclusive(folder):
        yield
        return
    name = f"{CLAIM}{uuid.uuid4().hex}.claim"
    folder.put(name, seal(own))
    try:
        claims = {blob.name: blob.modified_s for blob in folder.list(prefix=CLAIM)}
        for other in [other for other, written_s in claims.items() if claims[name] - written_s < CLAIM_S]:
            _require_no_claim(folder, other, own)
        yield
    finally:
        folder.delete(name)


def _require_no_claim(folder: BlobPlace, name: str, own: Owner) -> None:
    try:
        claimant = read_sealed(folder, name, Owner, known=OWNER_FORMAT)
    except NotFoundError:  # the claimant has finished: read the owner once more
        return
    if not claimant.is_same(own):
        raise ConflictError(
            f"The checkpoints {claimant.checkpoint} and {own.checkpoint} have the same query id, and both are becoming "
            f"the owner of {folder.url} at the same time.",
            hint="If one is a copy of the other, start first one of them, then the other.",
            retryable=True,
        )


def find_owner(folder: BlobPlace) -> str:
    """Return the checkpoint that owns the folder; an empty text if none does. Raises FormatError, StorageError."""
    owner = _read(folder)
    return "" if owner is None else owner.checkpoint


def other_owner(folder: BlobPlace, checkpoint: BlobPlace) -> str:
    """Return the checkpoint that owns the folder, unless that is ``checkpoint`` or there is none; then an empty text.

    Raises FormatError, StorageError.
    """
    owner = _read(folder)
    return "" if owner is None or owner.is_same(describe(checkpoint)) else owner.checkpoint


def require_own_state(
    checkpoint: BlobPlace, place: BlobPlace, identity: Identity, open_place: Callable[[str], BlobPlace]
) -> None:
    """Raise InvalidInputError unless ``place`` is proven to be the state of this store of ``checkpoint``.

    It must be in the checkpoint itself, or in a folder that the checkpoint owns; and no link may lead elsewhere. Raises
    FormatError, StorageError.
    """
    folder = store_folder(identity)
    root = open_place(place.url.removesuffix(f"/{folder}")) if place.url.endswith(f"/{folder}") else None
    if root is not None and not is_same_place(root.url, checkpoint.url):
        owner = _read(root)
        if owner is not None and not owner.is_same(describe(checkpoint)):
            raise InvalidInputError(
                f"The state of {identity} is in {place.url}, which belongs to the checkpoint {owner.checkpoint}. That "
                f"checkpoint may need objects that {checkpoint.url} does not need. Nothing was deleted.",
                hint=f"Clean up {owner.checkpoint} instead.",
            )
        root = None if owner is None else root
    if root is None:
        raise InvalidInputError(
            f"{checkpoint.url} says that the state of {identity} is in {place.url}, but nothing there says that it "
            "belongs to this checkpoint. Nothing was deleted.",
            hint=f"If a release without {OWNER_NAME} wrote it, start the query once: it then owns the folder. "
            f"Otherwise find out who wrote {checkpoint.url}/{folder}/{POINTER_NAME}.",
        )
    refuse_links(root.url, folder)


def refuse_links(root: str, folder: str) -> None:
    """Raise InvalidInputError if a link on the way from ``root``, a URL, to a ``folder`` below it leads elsewhere.

    The way to ``root`` itself may have links.
    """
    if names_scheme(root):
        return
    path = os.path.realpath(f"{root}/{folder}")
    if path != os.path.join(os.path.realpath(root), folder):  # noqa: PTH118 - as text, like all URLs
        raise InvalidInputError(
            f"A link leads from {root}/{folder} to {path}, which may have another owner. Nothing was deleted.",
            hint="Put the folder itself there. To keep state elsewhere, set the option remote, or make a link to the "
            "whole checkpoint.",
        )


def refuse_links_below(place: BlobPlace) -> None:
    """Raise InvalidInputError if anything below ``place`` is a link to another folder. Raises StorageError."""
    link = next((blob.name for blob in place.walk() if blob.name.endswith("/")), None)
    if link is not None:
        raise InvalidInputError(
            f"{place.url}/{link} is a link to another folder, whose objects may have another owner. Nothing was "
            "deleted.",
            hint="Remove the link, or name a new folder.",
        )


def _read(folder: BlobPlace) -> Owner | None:
    try:
        owner = read_sealed(folder, OWNER_NAME, Owner, known=OWNER_FORMAT)
    except NotFoundError:
        return None
    except FormatError as problem:
        raise FormatError(
            problem.message,
            hint=problem.hint or "It names the owner of the folder. Delete it if no other checkpoint has state there.",
        ) from problem
    check_format(owner.format, OWNER_FORMAT, f"{folder.url}/{OWNER_NAME}")
    return owner


def _require(owner: Owner, own: Owner, folder: BlobPlace, checkpoint: BlobPlace, remote: str) -> None:
    if owner.is_same(own):
        return
    rescale = write_rescale(checkpoint.url, remote=remote, **find_options(checkpoint, folder))
    raise InvalidInputError(
        f"The state in {folder.url} belongs to the checkpoint {owner.checkpoint}. {checkpoint.url} has the same query "
        "id: it is a copy of that checkpoint, or the same one under another path.",
        hint=f"To continue from a copy, make a checkpoint with its own id and state: {rescale} (PARTITIONS may be the "
        f"present number). If the checkpoint was moved, and no query will ever run on {owner.checkpoint} again, delete "
        f"{folder.url}/{OWNER_NAME} and start the query again.",
    )


def _without_default(url: str, other: str) -> str:
    """Return ``url`` without its authority if either of the two leaves the authority to the configuration of Hadoop."""
    if "hdfs:///" not in (url[:8], other[:8]):
        return url
    return re.sub(r"\Ahdfs://[^/]*/", "hdfs:///", url)
