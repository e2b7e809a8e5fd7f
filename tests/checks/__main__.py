"""``python -m tests.checks``: rules of names, promised errors, releases of PySpark, layers of the shim and sizes."""

from __future__ import annotations

import sys

from tests.checks import names, promised_errors, releases, shim_layers, sizes


def main() -> int:
    """Print what is wrong, file by file; returns the exit status."""
    problems = [
        *names.find_problems(),
        *promised_errors.find_problems(),
        *releases.find_problems(),
        *shim_layers.find_problems(),
        *sizes.find_problems(),
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
