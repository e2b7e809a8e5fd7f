"""A process that ends while a call of the HDFS client runs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.parametrize(("call_s", "expected"), [(0.5, "answered\n"), (60.0, "")])
def test_a_process_waits_for_calls_that_run_but_not_for_long(call_s: float, expected: str) -> None:
    program = f"""
        import time
        from pyspark_ckpt.state_store.blobs.hdfs import silent_calls

        silent_calls.EXIT_S = 2.0

        def call():
            time.sleep({call_s})
            print("answered", flush=True)

        silent_calls.DaemonThreads("calls").submit(call)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
