"""Fixtures of the tests of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.state_store import checkpoint as checkpoint_module
from pyspark_ckpt.state_store import remote as remote_module
from pyspark_ckpt.state_store.blobs import MeteredPlace, Traffic, place_at
from tests.reading.written import Written

MakeWritten = Callable[..., Written]


@pytest.fixture
def make_written(tmp_path: Path) -> Iterator[MakeWritten]:
    """Make a checkpoint of an operator that is keyed by the given columns."""
    made: list[Written] = []

    def make(*arguments: object, **more: object) -> Written:
        made.append(Written(tmp_path / str(len(made)), *arguments, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Of all places that readers of state use."""
    counted = Traffic()
    for module in (checkpoint_module, remote_module):
        monkeypatch.setattr(module, "place_at", lambda *where: MeteredPlace(place_at(*where), counted))
    return counted
