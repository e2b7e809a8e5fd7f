"""See the package."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from integration.conftest import new_session
from integration.life.play import play
from tests.life.course import Course


def main() -> int:
    """Play the seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration.life", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one; default: 1")
    parser.add_argument("--seeds", type=int, default=50, help="how many; default: 50")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-life-"))
    spark, failed = new_session(), []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        course = Course.of(seed)
        folder = scratch / str(seed)
        try:
            print(f"{course}: {play(spark, course, folder)} lines, all right", flush=True)
        except Exception:  # noqa: BLE001 - whatever is wrong: report it, and continue with the next seed
            traceback.print_exc()
            print(f"FAILED: {course}\nagain: --seed {seed} --seeds 1; left for you: {folder}", flush=True)
            failed.append(seed)
    spark.stop()  # after it nothing writes any more
    for seed in set(range(arguments.seed, arguments.seed + arguments.seeds)) - set(failed):
        shutil.rmtree(scratch / str(seed))
    print(f"failed: {failed}" if failed else f"{arguments.seeds} seeds, all right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
