"""The named changes of a query's state, in a file that goes with its checkpoints and savepoints."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, MIGRATIONS_NAME
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import Name, UnixMs, Words, check_format_in, decode_as, seal, unseal

MIGRATIONS_FORMAT = 1
MIGRATIONS_FILE = f"{CHECKPOINT_FOLDER}/{MIGRATIONS_NAME}"
_MAX_BYTES = 16 << 20


class AppliedMigration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A migration: its name, its time in ms since 1970, and its changes in words."""

    name: Name
    at_ms: UnixMs
    changes: tuple[Words, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    migrations: tuple[AppliedMigration, ...]


def require_migrations(content: bytes, where: str) -> None:
    """Raise FormatError that names ``where`` unless ``content`` is valid."""
    sealed = unseal(content, where)
    check_format_in(sealed, MIGRATIONS_FORMAT, where)
    decode_as(sealed, _File, where)


def read_migrations(place: BlobPlace) -> tuple[AppliedMigration, ...]:
    """Return the migrations of a checkpoint or savepoint, in their order. Raises FormatError, StorageError."""
    try:
        return read_sealed(place, MIGRATIONS_FILE, _File, _MAX_BYTES, known=MIGRATIONS_FORMAT).migrations
    except NotFoundError:
        return ()


def write_migrations(migrations: tuple[AppliedMigration, ...]) -> bytes:
    """Return the content of the file. Raises InvalidInputError (it would be too large to be read again)."""
    content = seal(_File(MIGRATIONS_FORMAT, migrations))
    if len(content) > _MAX_BYTES:
        raise InvalidInputError(
            f"The names and changes of {len(migrations)} migrations take {len(content):,} bytes, but there is room for "
            f"{_MAX_BYTES:,}.",
            hint="Give them shorter names, or put fewer changes into one.",
        )
    return content
