"""The programs of the README and of the documents run as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.documents import ROOT, find_programs

TIMEOUT_S = 240


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize("page", find_programs(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_program_of_the_documents_runs(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(find_programs()[page], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
