"""Checkpoints of earlier releases, which are read for ever: where they lie, and how they are packed.

::

    tests/compat/<version>/<name>.tar.gz    a whole checkpoint, as it was left
    tests/compat/<version>/expected.json    what is in each of them, and what a query shows that continues from it
    tests/compat/<version>/SHA256SUMS       of all other files: nothing here changes
    tests/compat/goes_on.json               what a query shows now that continues, where releases differ on purpose

``<version>`` is that of the stored format, written on the newest Spark of its day, or ``spark-<release>``: what this
package writes on an older Spark. ``tests/compat/write.py`` has made them.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SUMS = "SHA256SUMS"
EXPECTED = "expected.json"
VERSIONS = sorted(path.parent.name for path in HERE.glob(f"*/{SUMS}"))
SPARK = "spark-"
"""What the name of a folder begins with that an older Spark has written."""


def expected(version: str) -> dict[str, Any]:
    """What is known of the checkpoints of a format, by their names."""
    content: dict[str, Any] = json.loads((HERE / version / EXPECTED).read_text(encoding="utf-8"))
    return content


def goes_on(version: str, name: str) -> dict[str, list[str]]:
    """What a query shows that continues from its checkpoint.

    An operator on keys shows something else than its release did: a time to live in event time went by the watermark
    then, and goes by the rows of a call now. Rows that are stored end by the stamps that they have.
    """
    now: dict[str, dict[str, list[str]]] = json.loads((HERE / "goes_on.json").read_text(encoding="utf-8"))
    of_release: dict[str, list[str]] = expected(version)["queries"][name]["goes on"]
    return now.get(name, of_release)


def unpack(version: str, name: str, folder: Path) -> Path:
    """Put a checkpoint into the new ``folder``."""
    with tarfile.open(HERE / version / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def pack(checkpoint: Path, path: Path) -> None:
    """Make an archive of a checkpoint, without what says when and by whom."""

    def bare(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        for each in sorted(checkpoint.rglob("*")):
            archive.add(each, str(each.relative_to(checkpoint)), recursive=False, filter=bare)


def sums(folder: Path) -> str:
    """The digests of all files of a folder but of the list of them, in the form of ``sha256sum``."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
