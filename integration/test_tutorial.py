"""The steps of the tutorial run as they stand there, one after the other in one folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pages.documents import ROOT
from tests.pages.steps import find_steps, run_step

TIMEOUT_S = 240


@pytest.mark.in_turn
@pytest.mark.spark
def test_the_steps_of_the_tutorial_run(tmp_path: Path) -> None:
    steps = find_steps(ROOT / "docs/tutorial.md")
    assert len(steps) > 15
    tools = Path(sys.executable).parent
    environment = {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    for step in steps:
        run_step(step, tmp_path, environment, TIMEOUT_S)
