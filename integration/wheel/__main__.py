"""See the package."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from integration.wheel import program
from tests.pages.documents import ROOT, find_programs

RELEASES = ("3.5", "4.0", "4.1", "4.2", "4.3")


def main() -> int:
    """Return how many releases failed."""
    arguments = argparse.ArgumentParser(prog="python -m integration.wheel", description="See the package.")
    arguments.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE", help="default: all")
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"There is no wheel in {ROOT / 'dist'}: run `make wheel`.")
    failed = [release for release in arguments.parse_args().releases if not is_fine(release, wheels[-1])]
    return len(failed)


def is_fine(release: str, wheel: Path) -> bool:
    """Install and run, in folders that are deleted after it."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        python = install(Path(scratch) / "environment", release, wheel)
        ran = [run(python, Path(scratch) / name, code) for name, code in programs().items()]
    print(f"Spark {release}: {'fine' if all(ran) else 'FAILED'}, {time.monotonic() - begun:.0f} s", flush=True)
    return all(ran)


def install(environment: Path, release: str, wheel: Path) -> str:
    """Make an environment with the wheel and its Spark, and return its Python."""
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    wanted = f"{wheel}[spark{release.replace('.', '')}]"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted], check=True)
    return python


def programs() -> dict[str, str]:
    """The programs, by name."""
    return {"readme": find_programs()[ROOT / "README.md"], "savepoint": Path(program.__file__).read_text()}


def run(python: str, folder: Path, code: str) -> bool:
    """Run a program in an empty folder, and print what it prints."""
    folder.mkdir()
    (folder / "program.py").write_text(code, encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    done = subprocess.run(
        [python, "program.py"], cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=600
    )
    print(done.stdout, end="")
    if done.returncode:
        print(done.stderr, end="")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
