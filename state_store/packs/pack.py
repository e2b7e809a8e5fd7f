"""A pack: the deltas of several stores, one after the other, and an index behind them.

::

    <delta> <delta> ... <index> <size of the index: u64be> CKPTPACK

Each delta is as ``format.delta`` writes it, and is read by its place alone. The index is a sealed JSON object::

    {"format": 1, "commits": [{"operator", "partition", "name", "id", "parent", "start", "bytes"}], "xxh3": "..."}

It is for those who have no ids: retention, tools. The version is in the name of the pack: ``slots.pack_name``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from concurrent.futures import Executor

import msgspec

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, FormatError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import (
    CommitId,
    Count,
    OperatorNumber,
    Partitions,
    StoreName,
    check_format_in,
    decode_as,
    read_again,
    seal,
    unseal,
)
from pyspark_ckpt.state_store.packs.slots import Slot, locate, pack_name, parse_pack

INDEX_FORMAT = 1
MAX_INDEX_BYTES = 64 << 20
END_BYTES = 64 << 10
"""The size of the end of a pack that has the index of most packs."""

_END = struct.Struct(">Q8s")
_MAGIC = b"CKPTPACK"


class PackedCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"size_bytes": "bytes"}):
    """One commit of a pack: of which store, and where."""

    operator: OperatorNumber
    partition: Partitions
    name: StoreName
    id: CommitId
    parent: CommitId
    start: Count
    size_bytes: Count

    @property
    def identity(self) -> Identity:
        """The store."""
        return Identity(self.operator, self.partition, self.name)

    def find_id(self, pack: str) -> str:
        """Return the id that Spark keeps of the commit, which is in the pack with this id."""
        return locate(self.id, Slot(pack, self.start, self.size_bytes))

    def delta_name(self, version: int) -> DeltaName:
        """Return the name that the delta would have in the folder of its store."""
        return DeltaName(Marker(version, self.id), Marker(version - 1, self.parent))


class PackIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The index of a pack."""

    format: int
    commits: tuple[PackedCommit, ...]


def write_pack(
    place: BlobPlace, version: int, pack: str, deltas: Sequence[tuple[Identity, DeltaName, bytes]]
) -> list[Slot]:
    """Make deltas of ``version`` durable as one object; return where each is. Raises StorageError.

    An object of this name is an earlier try of this call, whose answer was lost: names are random.
    """
    slots: list[Slot] = []
    commits: list[PackedCommit] = []
    at = 0
    for identity, delta, content in deltas:
        slots.append(Slot(pack, at, len(content)))
        where = (identity.operator, identity.partition, identity.name)
        commits.append(PackedCommit(*where, delta.commit.id, delta.parent.id, at, len(content)))
        at += len(content)
    index = seal(PackIndex(INDEX_FORMAT, tuple(commits)))
    whole = b"".join([*(content for _, _, content in deltas), index, _END.pack(len(index), _MAGIC)])
    name = pack_name(version, pack)
    try:
        with place.create(name) as sink:
            sink.write(whole)
    except ConflictError:
        if place.get(name) != whole:
            raise
    return slots


def read_index(place: BlobPlace, blob: Blob) -> tuple[PackedCommit, ...]:
    """Return the commits of a pack, which a listing of ``place`` has shown as ``blob``, in any folder.

    Raises NotFoundError, FormatError that names it, StorageError.
    """
    where = f"{place.url}/{blob.name}"
    if parse_pack(blob.name.rpartition("/")[2]) is None:
        raise FormatError(f"{where} does not have the name of a pack.")
    return read_again(lambda: _read_index(place, blob, where))


class Indexes:
    """The indexes of the packs in one place, each read once."""

    def __init__(self, place: BlobPlace) -> None:
        """Know none yet of ``place``."""
        self._place = place
        self._known: dict[Blob, tuple[PackedCommit, ...]] = {}

    def keep_only(self, packs: Collection[Blob]) -> None:
        """Forget all packs but these."""
        self._known = {blob: self._known[blob] for blob in packs if blob in self._known}

    def read(self, packs: Sequence[Blob], pool: Executor) -> dict[Blob, tuple[PackedCommit, ...] | CkptError]:
        """Return the commits of each pack, or why its index cannot be read. Those that are new are read in ``pool``."""

        def read(blob: Blob) -> tuple[PackedCommit, ...] | CkptError:
            try:
                return read_index(self._place, blob)
            except CkptError as problem:
                return problem

        new = [blob for blob in packs if blob not in self._known]
        found = dict(zip(new, pool.map(read, new), strict=True))
        self._known |= {blob: index for blob, index in found.items() if not isinstance(index, CkptError)}
        return {blob: self._known[blob] if blob in self._known else found[blob] for blob in packs}


def _read_index(place: BlobPlace, blob: Blob, where: str) -> tuple[PackedCommit, ...]:
    end = place.get(blob.name, max(0, blob.size_bytes - END_BYTES), blob.size_bytes)
    if len(end) < _END.size:
        raise FormatError(f"{where} is damaged: it is too short, with {len(end)} bytes.")
    size, magic = _END.unpack(end[-_END.size :])
    begin = blob.size_bytes - _END.size - size
    if magic != _MAGIC or begin < 0 or size > MAX_INDEX_BYTES:
        raise FormatError(f"{where} is damaged: it does not end as a pack does.")
    if size + _END.size > len(end):
        end = place.get(blob.name, begin, blob.size_bytes)
    content = unseal(end[-_END.size - size : -_END.size], where)
    check_format_in(content, INDEX_FORMAT, where)
    commits = decode_as(content, PackIndex, where).commits
    at = 0
    for commit in commits:
        if commit.start != at:
            raise FormatError(f"{where} is damaged: its deltas do not lie one after the other.")
        at += commit.size_bytes
    if at != begin:
        raise FormatError(f"{where} is damaged: its deltas end at byte {at}, and its index begins at {begin}.")
    return commits
