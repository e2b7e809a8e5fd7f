"""``make test``: its phases, one after the other, and how long each took.

``python -m integration.phases lint jar``: these targets of make. The first that fails ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pyspark_ckpt.terminal import print_table


def run(targets: list[str]) -> int:
    """Make each target. Print its name before, and all times in the end. Return the exit code of the last one."""
    taken: list[tuple[str, str]] = []
    code = 0
    for number, target in enumerate(targets, 1):
        print(f"== {target} ({number} of {len(targets)})", flush=True)
        started = time.monotonic()
        code = subprocess.run([os.environ.get("MAKE", "make"), "--no-print-directory", target], check=False).returncode
        minutes, seconds = divmod(round(time.monotonic() - started), 60)
        taken.append((target if code == 0 else f"{target}, failed", f"{minutes}:{seconds:02}"))
        if code != 0:
            break
    print_table(("phase", "min:s"), taken)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
