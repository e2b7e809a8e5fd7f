"""A few random chains under kills; ``python -m integration.chains`` plays many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.chains.course import Course
from integration.chains.play import PROGRAM, play
from integration.crash.chaos import LOCAL
from integration.crash.driver import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """Drivers that play courses."""
    relay = Relay(tmp_path_factory.mktemp("chains"), LOCAL, PROGRAM)
    yield relay
    relay.close()


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.parametrize("seed", [46, pytest.param(45, marks=pytest.mark.matrix)])
def test_a_chain_outputs_what_plain_python_does_when_it_is_killed_and_rescaled(
    seed: int, drivers: Relay, tmp_path: Path
) -> None:
    play(Course.of(seed), tmp_path, drivers)
