"""``python -m tests.checks``: functions are named by verbs, and errors that docstrings promise are raised."""

from __future__ import annotations

import sys

from tests.checks import names, promised_errors


def main() -> int:
    """Print what is wrong, file by file; returns the exit status."""
    problems = [*names.find_problems(), *promised_errors.find_problems()]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
