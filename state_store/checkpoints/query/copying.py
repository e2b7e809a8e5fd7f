"""Copy the files of a query into a savepoint, or into a new checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.content import ContentRewrite, check_content
from pyspark_ckpt.state_store.checkpoints.query.entries import is_log, require_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import (
    QUERY,
    log_names,
    make_missing_error,
    operator_names,
    source_file_names,
)
from pyspark_ckpt.state_store.checkpoints.query.proof import QueryFile
from pyspark_ckpt.state_store.errors import NotFoundError


class Target(Protocol):
    """A place to which these files are written."""

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there. Raises StorageError."""
        ...

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is not there. Raises StorageError."""
        ...


class RenamingTarget:
    """A target in which files have other names."""

    def __init__(self, target: Target, rename: Callable[[str], str]) -> None:
        self._target, self._rename = target, rename

    def put(self, name: str, data: bytes) -> None:
        """Write ``data`` under the other name. Raises StorageError."""
        self._target.put(self._rename(name), data)

    def delete(self, name: str) -> None:
        """Remove the object with the other name. Raises StorageError."""
        self._target.delete(self._rename(name))


def read_logs(source: BlobPlace, batch: int) -> dict[str, bytes]:
    """Return the logs that a query needs to continue after ``batch``, by name, for ``copy_logs``.

    Do this first: a running query soon deletes its logs. Raises here any error that a copy of the logs or of the
    sources would raise: NotFoundError, FormatError, InvalidInputError (a link to a folder), StorageError.
    """
    logs: dict[str, bytes] = {}
    with naming_repair(source):
        for name in filter(is_log, list(log_names(source, batch))):
            try:
                content = source.get(name)
            except NotFoundError as problem:
                raise make_missing_error(source, name, batch) from problem
            logs[name] = check_content(name, content, f"{source.url}/{name}")
        name = f"offsets/{batch}"
        require_partitions(logs[name], f"{source.url}/{name}")
    return logs


def require_whole(source: BlobPlace, names: Iterable[str], change: ContentRewrite = check_content) -> None:
    """Raise FormatError if one of these objects is damaged, before anything is written. One that has gone is passed.

    ``change`` finds the damage. Also raises StorageError.
    """
    for name in names:
        with suppress(NotFoundError):  # replaced meanwhile by a running query
            change(name, source.get(name), f"{source.url}/{name}")


def copy_logs(
    logs: Mapping[str, bytes], source: BlobPlace, target: Target, change: ContentRewrite = check_content
) -> list[QueryFile]:
    """Write logs that were read from ``source``, and copy the files of its sources, which are read after the logs.

    ``change`` makes the new content of an object from its name, its content and its location. Raises NotFoundError,
    FormatError, InvalidInputError (a link to a folder), StorageError.
    """
    changed = {name: change(name, content, f"{source.url}/{name}") for name, content in logs.items()}
    for name, content in changed.items():
        target.put(name, content)
    written = [QueryFile.of(name, content) for name, content in changed.items()]
    return [*written, *copy_files(lambda: source_file_names(source), source, target, change)]


def copy_operators(source: BlobPlace, target: Target, change: ContentRewrite = check_content) -> list[QueryFile]:
    """Copy the files that describe operators, without their state. Raises as ``copy_logs``."""
    return copy_files(lambda: operator_names(source), source, target, change)


def copy_id(source: BlobPlace, target: Target, change: ContentRewrite = check_content) -> list[QueryFile]:
    """Copy ``metadata``, which makes the target a checkpoint. Raises as ``copy_logs``."""
    return copy_files(lambda: iter([QUERY]), source, target, change)


def copy_files(
    names: Callable[[], Iterator[str]], source: BlobPlace, target: Target, change: ContentRewrite
) -> list[QueryFile]:
    """Copy objects. A running query may replace some by others with the same meaning: then only the new ones are kept.

    ``names`` lists the present objects. Raises as ``copy_logs``.
    """
    copied: set[str] = set()
    while True:
        wanted = list(names())
        for name in sorted(copied.difference(wanted)):
            target.delete(name)
        copied.intersection_update(wanted)
        files: list[QueryFile] = []
        try:
            for name in wanted:
                files.append(_copy_object(name, source, target, change))
                copied.add(name)
        except NotFoundError:
            if set(wanted) <= set(names()):
                raise
        else:
            return files


def _copy_object(name: str, source: BlobPlace, target: Target, change: ContentRewrite) -> QueryFile:
    content = change(name, source.get(name), f"{source.url}/{name}")
    target.put(name, content)
    return QueryFile.of(name, content)
