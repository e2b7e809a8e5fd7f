"""An environment with the package, packed for the containers of a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from integration.crash.driver import ROOT

ENVIRONMENT = ROOT / ".tools" / "yarn" / "environment"
"""What the package needs, and venv-pack; ``make`` fills it."""


def pack(folder: Path) -> Path:
    """Put this checkout's wheel into the environment, without a jar, and pack it.

    Skips the test if ``make`` has not made an environment.
    """
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        pytest.skip("NOT RUN: needs an environment for YARN, which `make .tools/yarn/.ready` makes.")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    _run(*build, folder / "wheels", ROOT)
    (wheel,) = (folder / "wheels").glob("*.whl")
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel)
    for jar in ENVIRONMENT.glob("lib/*/site-packages/pyspark_ckpt/jars/*.jar"):
        jar.unlink()
    packed = folder / "environment.tar.gz"
    _run(python, "-m", "venv_pack", "--quiet", "--compress-level", "1", "--prefix", ENVIRONMENT, "--output", packed)
    return packed


def _run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
