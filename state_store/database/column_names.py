"""The conventions of writers and readers of column files. Keyed operators look up many keys in these files."""

from __future__ import annotations

import re
from pathlib import Path

MIN_KEYS = 2048
"""Below this number of keys, RocksDB looks them up, and is fast enough."""
ROWS_A_KEY = 2
"""Table files with more rows for each key of a batch get column files. Files with fewer may be read as a whole."""

_NAME = re.compile(r"(\d+)-([0-9a-f]{16})\.arrow")


def columns_folder(db: Path) -> Path:
    """Return the folder of the column files of a live database."""
    return db.with_name("columns")


def column_files_in(folder: Path) -> dict[str, Path]:
    """Return the column files of a folder by the names of their table files."""
    try:
        paths = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {f"{name[1]}.sst": path for path in paths if (name := _NAME.fullmatch(path.name))}


def column_file_name(table: Path, checksum: str) -> str:
    """Return the name of the column file of a table file. ``checksum``: 16 hexadecimal digits for its content."""
    return f"{table.stem}-{checksum}.arrow"


def checksum_in(path: Path) -> str:
    """Return the checksum in the name of a column file."""
    return path.stem.rpartition("-")[2]
