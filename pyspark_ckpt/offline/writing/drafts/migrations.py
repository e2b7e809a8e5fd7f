"""Which of the given changes are made: migrations that the source has had are skipped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.offline.writing.drafts.changes import Change, Migration, describe
from pyspark_ckpt.state_store.checkpoints.query.migrations import AppliedMigration
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import is_text

MAX_NAME = 1000


@dataclass(frozen=True)
class ChosenChanges:
    """The changes to make, and the migrations of the savepoint that is made: those of the source, and new ones."""

    changes: tuple[Change, ...]
    former_migrations: tuple[AppliedMigration, ...]
    new_migrations: tuple[AppliedMigration, ...]

    @property
    def migrations(self) -> tuple[AppliedMigration, ...]:
        """All migrations, in their order."""
        return self.former_migrations + self.new_migrations

    @classmethod
    def of(cls, given: Sequence[Change | Migration], before: tuple[AppliedMigration, ...]) -> ChosenChanges:
        """Choose from the ``given`` ones. ``before``: the migrations of the source.

        Raises InvalidInputError (a migration without a name or changes, two with one name, or a new one before one
        that was applied already).
        """
        changes: list[Change] = []
        made, now_ms = list[AppliedMigration](), round(time.time() * 1000)
        names: list[str] = []
        for each in given:
            if isinstance(each, Migration):
                _require_migration(each, names)
                names.append(each.name)
        known = {each.name for each in before}
        for position, each in enumerate(given):
            if not isinstance(each, Migration):
                changes.append(each)
                continue
            if each.name in known:
                continue
            later = [other.name for other in given[position:] if isinstance(other, Migration) and other.name in known]
            if later:
                raise InvalidInputError(
                    f"Migration {each.name!r} comes before {later[0]!r}, which was applied already.",
                    hint="Put new migrations at the end of the list.",
                )
            changes += each.changes
            made.append(AppliedMigration(each.name, now_ms, tuple(map(describe, each.changes))))
        return cls(tuple(changes), before, tuple(made))


def _require_migration(migration: Migration, names: Sequence[str]) -> None:
    name: object = migration.name  # from Python, which does not check types
    if type(name) is not str or not 0 < len(name) <= MAX_NAME or not is_text(name):
        raise InvalidInputError(
            f"A migration has the name {repr(name)[:200]}: give it a text of 1 to {MAX_NAME} characters."
        )
    if name in names:
        raise InvalidInputError(f"Two migrations have the name {name!r}.", hint="Give each a name of its own.")
    changes: object = migration.changes
    if (
        isinstance(changes, str)
        or not isinstance(changes, Sequence)
        or not all(isinstance(each, Change) for each in changes)
    ):
        raise InvalidInputError(
            f"Migration {name!r} has {repr(changes)[:200]} of type {type(changes).__name__} as its changes.",
            hint="Give a list of changes: see pyspark_ckpt.writing.",
        )
