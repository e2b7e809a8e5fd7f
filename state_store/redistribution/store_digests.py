"""Digests of all states of a store that stays as it is: restores and savepoints use them to prove that nothing is lost.

A task that rewrites rows takes their digests on the way. A task that copies files must read them for the digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests
from pyspark_ckpt.state_store.checkpoints.state_rows import (
    digest_states,
    read_counts,
    refuse_stray_rows,
    require_counts,
    require_digests,
)
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.errors import FormatError


@dataclass(frozen=True)
class DigestTask:
    """Reads one store. ``when``: whether it is the source of a copy ("before") or the copy itself ("after")."""

    workplace: Workplace
    store: StoreVersion
    when: Literal["before", "after"]

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"digest-{self.when}-{self.store.identity.key}"

    def __call__(self) -> dict[str, Digest]:
        """Return the digests of its states, by name. They cover as many rows as the store must have.

        Raises StorageError, FormatError, NotFoundError.
        """
        what = f"{self.store.identity} at {self.store.url}"
        with self.workplace.folder() as folder, self.workplace.restore(self.store, folder / "copy") as restored:
            refuse_stray_rows(restored.database, restored.meta, what)
            digests = digest_states(restored.database, restored.meta.states)
            require_counts(read_counts(restored.database, restored.meta), digests, what)
            require_digests(restored.meta.states, digests, what)
            return digests


def make_digest_tasks(
    workplace: Workplace, stores: Sequence[StoreVersion], targets: Sequence[str]
) -> tuple[list[DigestTask], list[DigestTask]]:
    """Return tasks that read stores, and tasks that read their copies at the URLs in ``targets``."""
    copies = [StoreVersion(store.identity, url, store.meta) for store, url in zip(stores, targets, strict=True)]
    return (
        [DigestTask(workplace, store, "before") for store in stores],
        [DigestTask(workplace, store, "after") for store in copies],
    )


def require_recorded(recorded: Digests, found: Digests, what: str) -> None:
    """Raise FormatError, naming the first state of ``what`` that differs, unless all ``recorded`` states match."""
    problems = find_differences(recorded, found, what)
    if problems:
        raise FormatError(problems[0], hint="Take another savepoint, or restore one that is not damaged.")


def find_differences(recorded: Digests, found: Digests, what: str) -> list[str]:
    """Return a message for each state of ``what`` that differs from its ``recorded`` digest."""
    return [
        f"{what}: state {name!r} was recorded with {old.rows} rows and the digest {old.sum}, but has {new.rows} rows "
        f"with the digest {new.sum}."
        for name, old in sorted(recorded.items())
        if (new := found.get(name, Digest())) != old
    ]
