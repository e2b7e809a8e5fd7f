"""Files of lines, which a query reads one after another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

FIRST_S = 1_700_000_000
"""The time of the first file: Spark reads files in the order of their times."""


def write_files(folder: Path, files: Iterable[Sequence[str]]) -> None:
    """Make a folder with a file for each list of lines, in the order in which Spark reads them."""
    folder.mkdir()
    for number, lines in enumerate(files):
        write_file(folder, number, lines)


def write_file(folder: Path, number: int, lines: Sequence[str]) -> None:
    """Write the file that Spark reads as the one of this number. A query that runs sees all of it or nothing."""
    path = folder / f".{number:04d}.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    os.utime(path, (FIRST_S + number,) * 2)
    path.rename(folder / path.name[1:])
