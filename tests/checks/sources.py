"""The sources of the package, parsed, and those of the shim."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("pyspark_ckpt", "state_store", "operators")


def parse_all() -> Iterator[tuple[str, ast.Module]]:
    """Every module: its path from the root of the repository, and its tree."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def list_scala() -> list[Path]:
    """Every source of the shim: what all releases of Spark have, what each has, and the tests."""
    return sorted((ROOT / "jvm-bridge" / "src").rglob("*.scala"))
