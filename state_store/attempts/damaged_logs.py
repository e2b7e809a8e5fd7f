"""Errors about damaged files of a query name the command that finds out how the query can continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_ckpt.state_store.blobs import BlobPlace, find_options
from pyspark_ckpt.state_store.display import write_command
from pyspark_ckpt.state_store.errors import FormatError

_SAVEPOINT = "savepoint."
"""How the marks of savepoints begin, which nothing repairs."""


@contextmanager
def naming_repair(checkpoint: BlobPlace) -> Iterator[None]:
    """If the block raises a FormatError without a hint, let it name ``checkpoint repair``. Raises StorageError."""
    try:
        yield
    except FormatError as problem:
        if problem.hint:
            raise
        raise FormatError(problem.message, hint=advise_repair(checkpoint)) from problem


def advise_repair(checkpoint: BlobPlace) -> str:
    """Return a sentence that names ``checkpoint repair``; empty for a savepoint. Raises StorageError."""
    if checkpoint.list(prefix=_SAVEPOINT):
        return ""
    command = write_command("checkpoint", "repair", checkpoint.url, **find_options(checkpoint))
    return f"To find the batch after which the query can continue, use {command}."
