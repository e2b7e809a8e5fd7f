"""Column files, in which keyed operators look many keys up: what who writes them and who reads them agree on."""

from __future__ import annotations

import re
from pathlib import Path

MIN_KEYS = 2048
"""Fewer are looked up by RocksDB, which is quick enough."""
ROWS_A_KEY = 2
"""Table files with more rows for each key of a batch have column files; those with fewer may be read as a whole."""

_NAME = re.compile(r"(\d+)-([0-9a-f]{16})\.arrow")


def columns_folder(db: Path) -> Path:
    """The folder of those of a live database."""
    return db.with_name("columns")


def column_files_in(folder: Path) -> dict[str, Path]:
    """The column files of a folder, by the names of the table files that they are of."""
    try:
        paths = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {f"{name[1]}.sst": path for path in paths if (name := _NAME.fullmatch(path.name))}


def column_file_name(table: Path, checksum: str) -> str:
    """That of the one of a table file, with 16 hexadecimal digits for what is in it."""
    return f"{table.stem}-{checksum}.arrow"


def checksum_in(path: Path) -> str:
    """The checksum in the name of a column file."""
    return path.stem.rpartition("-")[2]
