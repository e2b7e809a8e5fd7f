"""See the package."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from integration.chains.course import Course
from integration.chains.play import PROGRAM, play
from integration.crash.chaos import LOCAL
from integration.crash.driver import Relay


def main() -> int:
    """Play the seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration.chains", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one; default: 1")
    parser.add_argument("--seeds", type=int, default=200, help="how many; default: 200")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-chains-"))
    drivers, failed = Relay(scratch, LOCAL, PROGRAM), []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        course, folder, started = Course.of(seed), scratch / str(seed), time.monotonic()
        try:
            kills = play(course, folder, drivers)
        except Exception:  # noqa: BLE001 - whatever is wrong: report it, and continue with the next seed
            traceback.print_exc()
            print(f"FAILED: {course}\nagain: --seed {seed} --seeds 1; left for you: {folder}", flush=True)
            failed.append(seed)
            drivers.close()
        else:
            print(f"{course}: {kills} kills, {time.monotonic() - started:.0f} s, all right", flush=True)
            shutil.rmtree(folder)
    drivers.close()
    print(f"failed: {failed}" if failed else f"{arguments.seeds} seeds, all right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
