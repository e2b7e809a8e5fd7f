"""Each line of the README's table of extras, as printed: ``python -m integration.wheel.readme [PYTHON:EXTRA ...]``.

For each release of Python and each extra a new environment is made beside a copy of the checkout without jars,
``pip install ".[EXTRA]"`` runs there, and then the two programs of ``integration.wheel``. The jar is built by the first
of them. Where README says that a pair does not work, pip must refuse it, in a line that names the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from integration.wheel.__main__ import programs, run
from tests.pages.documents import ROOT

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SPARKS = ("spark", "spark35", "spark40", "spark41", "spark42", "spark43")
PLACES = "s3,hdfs,gcs,azure,web,prometheus,otel"
REFUSED = {
    **dict.fromkeys((("3.12", "spark35"), ("3.13", "spark35")), "python_version >="),
    ("3.10", "spark43"): "Requires-Python",
}
"""Pairs that README excludes, and what pip says of them."""
LEFT_OUT = (".*", "build", "dist", "*.egg-info", "__pycache__", "target", "*.jar", "compat")


def main() -> int:
    """Return how many pairs failed."""
    arguments = argparse.ArgumentParser(prog="python -m integration.wheel.readme", description="See the module.")
    every = [f"{python}:{extra}" for python in PYTHONS for extra in (*SPARKS, PLACES)]
    arguments.add_argument("pairs", nargs="*", default=every, metavar="PYTHON:EXTRA", help="default: all")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "checkout"
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
        failed = [pair for pair in arguments.parse_args().pairs if not _is_right(source, *pair.split(":"))]
    return len(failed)


def _is_right(source: Path, python: str, extra: str) -> bool:
    """Install and run, in folders that are deleted after it."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch) / "environment"
        subprocess.run([_find_python(python), "-m", "venv", str(environment)], check=True)
        own = str(environment / "bin" / "python")
        call = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f".[{extra}]"]
        done = subprocess.run(call, cwd=source, capture_output=True, text=True, check=False)
        if (reason := REFUSED.get((python, extra))) is not None:
            is_right = done.returncode != 0 and any(reason in line for line in done.stderr.splitlines())
        elif done.returncode:
            is_right = False
        else:
            is_right = _runs(own, extra, Path(scratch))
    said = "right" if is_right else f"WRONG: {done.stdout}{done.stderr}"
    print(f"Python {python}, [{extra}]: {said}, {time.monotonic() - begun:.0f} s", flush=True)
    return is_right


def _runs(python: str, extra: str, scratch: Path) -> bool:
    """Run the programs with a cache of their own. Without Spark, only the command line."""
    os.environ["PYSPARK_CKPT_JARS"] = str(scratch / "jars")
    if extra in SPARKS:
        ran = [run(python, scratch / name, code) for name, code in programs().items()]
        return all(ran)
    return subprocess.run([python, "-m", "pyspark_ckpt", "--help"], cwd=scratch, check=False).returncode == 0


def _find_python(release: str) -> str:
    """Return an interpreter: that on PATH, or one of pyenv."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{release}.*/bin/python"))
    found = shutil.which(f"python{release}") or next(map(str, kept), None)
    return found or sys.exit(f"There is no Python {release}: put python{release} on PATH.")


if __name__ == "__main__":
    sys.exit(main())
