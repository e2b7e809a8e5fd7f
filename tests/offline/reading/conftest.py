"""Fixtures of the tests of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.offline.reading.written import Written

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
