"""The proof that a savepoint's files of a query have not changed since it was taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.content import ContentRewrite, check_content
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, log_names, operator_names
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import Count, ObjectName, Xxh3


class QueryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of these files, as copied."""

    name: ObjectName
    size_bytes: Count
    xxh3: Xxh3

    @classmethod
    def of(cls, name: str, content: bytes) -> QueryFile:
        """Return the entry of a file with this content."""
        return cls(name, len(content), xxhash.xxh3_128_hexdigest(content))


class LogProof:
    """Accepts the files that a savepoint lists, unchanged since it was taken, and nothing else."""

    def __init__(self, files: Iterable[QueryFile], change: ContentRewrite = check_content) -> None:
        """Apply ``change`` to objects that match one of the ``files``."""
        self._files = {file.name: file for file in files}
        self._left = set(self._files)
        self._change = change

    def __call__(self, name: str, content: bytes, where: str) -> bytes:
        """See ContentRewrite. Raises FormatError."""
        if name not in self._files:
            raise FormatError(f"{where} does not belong to the savepoint: it was written there later.")
        if self._files[name] != QueryFile.of(name, content):
            raise FormatError(
                f"{where} is damaged: it has changed since the savepoint was taken.",
                hint="Copy the savepoint again from its original, or take another.",
            )
        self._left.discard(name)
        return self._change(name, content, where)

    def require_all(self, place: BlobPlace) -> None:
        """Raise NotFoundError if a listed object of ``place`` was not checked."""
        if self._left:
            raise NotFoundError(
                f"{place.url}/{min(self._left)} is missing: the savepoint was taken with it.",
                hint="Copy the savepoint again from its original, or take another.",
            )


def find_damage(place: BlobPlace, batch: int, files: Sequence[QueryFile]) -> list[str]:
    """Return the damage in a savepoint's files of a query that makes a restore refuse it. Raises StorageError."""
    proof, known, problems = LogProof(files), {file.name for file in files}, list[str]()

    def prove(names: Iterable[str]) -> None:
        for name in names:
            try:
                proof(name, place.get(name), f"{place.url}/{name}")
            except (FormatError, NotFoundError) as problem:
                problems.append(problem.message)

    prove(sorted(known))
    try:
        prove(name for name in [*log_names(place, batch), *operator_names(place), QUERY] if name not in known)
    except NotFoundError as problem:
        if not problems:  # otherwise the missing file is already among them
            problems.append(problem.message)
    return problems
