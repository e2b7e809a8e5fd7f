"""Digests of all states of a store that stays as it is: what a restore and a savepoint prove that nothing was lost by.

Who writes rows anew takes their digests on the way; who copies files has to read them for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests
from pyspark_ckpt.state_store.checkpoints.state_rows import counts_of, digests_of, refuse_stray_rows, require_counts
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.errors import FormatError


@dataclass(frozen=True)
class DigestTask:
    """Reads one store. ``when``: of a copy, whether it is what was copied, or what came of it."""

    workplace: Workplace
    store: StoreVersion
    when: Literal["before", "after"]

    @property
    def key(self) -> str:
        """Names the task among all of its job."""
        return f"digest-{self.when}-{self.store.identity.key}"

    def __call__(self) -> dict[str, Digest]:
        """Digests of its states, by name, of as many rows as there must be.

        Raises StorageError, FormatError, NotFoundError.
        """
        what = f"{self.store.identity} at {self.store.url}"
        with self.workplace.folder() as folder, self.workplace.restore(self.store, folder / "copy") as restored:
            refuse_stray_rows(restored.database, restored.meta, what)
            digests = digests_of(restored.database, restored.meta.states)
            require_counts(counts_of(restored.database, restored.meta), digests, what)
            return digests


def both_of(
    workplace: Workplace, stores: Sequence[StoreVersion], targets: Sequence[str]
) -> tuple[list[DigestTask], list[DigestTask]]:
    """Tasks that read stores, and what was copied of each to one of the ``targets``, which are URLs."""
    copies = [StoreVersion(store.identity, url, store.meta) for store, url in zip(stores, targets, strict=True)]
    return (
        [DigestTask(workplace, store, "before") for store in stores],
        [DigestTask(workplace, store, "after") for store in copies],
    )


def require_recorded(recorded: Digests, found: Digests, what: str) -> None:
    """Raise FormatError that names the first state of ``what`` which is not as it was ``recorded``, if it was."""
    problems = unlike_recorded(recorded, found, what)
    if problems:
        raise FormatError(problems[0], hint="Take another savepoint, or restore one that is not damaged.")


def unlike_recorded(recorded: Digests, found: Digests, what: str) -> list[str]:
    """Which states of ``what`` are not as they were ``recorded``."""
    return [
        f"{what}: state {name!r} was recorded with {old.rows} rows and the digest {old.sum}, "
        f"and has {new.rows} with {new.sum}."
        for name, old in sorted(recorded.items())
        if (new := found.get(name, Digest())) != old
    ]
