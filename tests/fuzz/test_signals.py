"""Nothing that a program gives or a checkpoint holds ends the process: each round runs in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROUNDS = 300 * int(os.environ.get("CKPT_FUZZ", "1"))


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(3))
def test_no_value_and_no_stored_bytes_end_the_process(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.arrow_lives", str(seed), str(ROUNDS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.returncode}: {done.stderr[-3000:]}"
    assert int(done.stdout.split()[-1]) > ROUNDS, "most of it is taken"
