"""The program ``pyspark-ckpt``, also ``python -m pyspark_ckpt``: the command line."""

from __future__ import annotations

import sys

from pyspark_ckpt.cli import INTERRUPTED, NAME


def main() -> int:
    """Run the command that was called; return the exit code. Ctrl-C ends it with one line, even during imports."""
    try:
        from pyspark_ckpt.cli.main import main as run  # noqa: PLC0415 - see above

        return run()
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
