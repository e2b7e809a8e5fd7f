"""Calls that are interrupted, and what is put in the place of the folders that they work on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.saved_query import Query, files, written


def branches(folder: Path, **more: Any) -> tuple[Query, Query]:  # noqa: ANN401
    """Two queries of one id at one version: before it was rolled back, and after it has run its batches again."""
    first, second = (written(folder / name, 2, batches=3, seed=seed, **more) for seed, name in enumerate("ab"))
    return first, second


def objects(folder: Path) -> dict[str, bytes]:
    """All of a folder but for the files of writes that have not ended."""
    return {name: content for name, content in files(folder).items() if not name.endswith(".tmp")}


def replace(target: Path, source: Path) -> None:
    """Put a copy of a folder in the place of another."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def fail(monkeypatch: pytest.MonkeyPatch, step: str, run: Callable[[], object]) -> None:
    """Run, and be interrupted at a step."""

    def failing(*_: object) -> None:
        raise StorageError("made up")

    with monkeypatch.context() as patched:
        patched.setattr(step, failing)
        with pytest.raises(StorageError, match="made up"):
            run()


def take(query: Query, saved: Path, kind: Kind) -> dict[str, bytes]:
    """Take a savepoint; its objects."""
    savepoints.savepoint(query.location, saved, kind=kind)
    return objects(saved)
