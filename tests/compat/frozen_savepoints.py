"""Savepoints of earlier releases, which are restored for ever: where they lie, and how they were made.

::

    tests/compat/savepoints/<version>/<name>.tar.gz    a whole savepoint
    tests/compat/savepoints/<version>/expected.json    what is in it
    tests/compat/savepoints/<version>/SHA256SUMS       of all other files: nothing here changes

``<version>`` is that of the format of savepoints. ``python -m tests.compat.frozen_savepoints v2`` writes the next one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark_ckpt.savepoints import savepoint
from tests.compat.frozen import EXPECTED, SUMS, pack, sums, unpack
from tests.saved_query import Logical, stored, written

HERE = Path(__file__).parent / "savepoints"
VERSIONS = sorted(path.parent.name for path in HERE.glob(f"*/{SUMS}"))
QUERIES = ("aggregation", "keyed")
"""Queries of Spark whose checkpoints are frozen as well: these are savepoints of them."""
EVERY_LAYOUT = "every-layout"


def main(version: str) -> None:
    """Write the folder ``version``, which must not be there."""
    folder = HERE / version
    folder.mkdir(parents=True)
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        query = written(Path(scratch) / "query", 2, seed=1)
        query.plan()
        savepoint(query.location, f"{scratch}/{EVERY_LAYOUT}")
        expected[EVERY_LAYOUT] = as_json(*stored(f"{scratch}/{EVERY_LAYOUT}"))
        for name in QUERIES:
            savepoint(str(unpack("v1", name, Path(scratch) / f"{name}-query")), f"{scratch}/{name}")
        for name in (EVERY_LAYOUT, *QUERIES):
            pack(Path(scratch) / name, folder / f"{name}.tar.gz")
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    (folder / SUMS).write_text(sums(folder), encoding="ascii")


def as_json(version: int, partitions: int, rows: Logical) -> dict[str, Any]:
    """What a checkpoint holds, as it is kept."""
    states = {
        "/".join(map(str, where)): {key.decode(): value.hex() for key, value in sorted(each.items())}
        for where, each in sorted(rows.items())
    }
    return {"version": version, "partitions": partitions, "rows": states}


if __name__ == "__main__":
    main(sys.argv[1])
