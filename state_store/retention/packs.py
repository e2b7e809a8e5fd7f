"""Delete the packs of a query that no store needs any more.

Each store says, in an object of its own, up to which version a snapshot replaces its commits (``retention``). A pack of
a version goes when all stores with a commit in it have said so for that version. It does not matter when this runs, or
how often at a time: what a store has said stays true, and names of packs are used once. (A store that begins anew over
what is left of an earlier life withdraws what was said, before it writes its first pack.) A pack that arrives late, of
a process that was thought dead, is of such a version and goes with the next run.

So one listing of the query's folder stands for one of each store, and each index is read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from types import MappingProxyType

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import CkptError, NotFoundError
from pyspark_ckpt.state_store.format.names import ReplacedName, parse
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.packs.pack import Indexes, PackedCommit
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, parse_pack

STATE_FOLDER = "state"

_STORE = re.compile(rf"{STATE_FOLDER}/([0-9]{{1,9}})/([0-9]{{1,7}})(?:/([^/]+))?/([^/]+)")


class PackRetention:
    """Deletes packs of one query."""

    def __init__(self, root: BlobPlace, pool: Executor, log: StoreLog) -> None:
        """Delete below ``root``, the folder with the state of the query, with the threads of ``pool``."""
        self._root = root
        self._pool = pool
        self._log = log
        self._indexes = Indexes(root)

    def find(self, found: Mapping[Identity, int] = MappingProxyType({})) -> list[Blob]:
        """Return the packs that no store needs. Nothing is deleted. Raises StorageError.

        ``found``: up to which versions the commits of stores are replaced, whether they have said so or not.
        """
        packs = [blob for blob in self._root.list(PACKS_FOLDER) if self._version(blob)]
        self._indexes.keep_only(packs)
        if not packs:
            return []
        replaced = dict(self._list_replaced())
        replaced = {each: max(replaced.get(each, 0), found.get(each, 0)) for each in replaced.keys() | found.keys()}
        newest = max(replaced.values(), default=0)
        old = [blob for blob in packs if self._version(blob) <= newest]
        free = []
        for blob, index in self._indexes.read(old, self._pool).items():
            if not isinstance(index, CkptError):
                free += [blob] if self._is_free(blob, index, replaced) else []
            elif not isinstance(index, NotFoundError):  # another process deletes packs, too
                self._log.warn_of_standing("a pack that cannot be read is kept: %s", index)
        return free

    def clean(self) -> int:
        """Delete the packs that no store needs; return how many. Raises StorageError. The next call continues."""
        free = self.find()
        for _ in self._pool.map(lambda blob: self._root.delete(blob.name), free):
            pass
        return len(free)

    def _is_free(self, blob: Blob, index: Sequence[PackedCommit], replaced: Mapping[Identity, int]) -> bool:
        return all(replaced.get(commit.identity, 0) >= self._version(blob) for commit in index)

    def _list_replaced(self) -> Iterator[tuple[Identity, int]]:
        """Yield each store that has said up to which version its commits are replaced, the newest version last."""
        for blob in self._root.walk(STATE_FOLDER):
            match = _STORE.fullmatch(blob.name)
            name = None if match is None else parse(match[4])
            if match is not None and isinstance(name, ReplacedName):
                yield Identity(int(match[1]), int(match[2]), match[3] or DEFAULT_STORE), name.commit.version

    @staticmethod
    def _version(blob: Blob) -> int:
        """Return the version of a pack; 0 for a foreign object."""
        found = parse_pack(blob.name.removeprefix(f"{PACKS_FOLDER}/"))
        return 0 if found is None else found[0]
