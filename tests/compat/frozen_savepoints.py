"""Savepoints of earlier releases, which are restored for ever: where they lie, and how they were made.

::

    tests/compat/savepoints/<version>/<name>.tar.gz              a whole savepoint
    tests/compat/savepoints/<version>/<name>-canonical.tar.gz    one of the same batch, with the rows in Parquet
    tests/compat/savepoints/<version>/expected.json              what is in them
    tests/compat/savepoints/<version>/SHA256SUMS                 of all other files: nothing here changes

``<version>`` is that of the format of savepoints. ``python -m tests.compat.frozen_savepoints v2`` writes the next one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark_ckpt.savepoints import savepoint
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.compat.frozen import EXPECTED, SUMS, pack, sums, unpack
from tests.labs.saved_query import Logical, stored, written

HERE = Path(__file__).parent / "savepoints"
VERSIONS = sorted(path.parent.name for path in HERE.glob(f"*/{SUMS}"))
QUERIES = ("aggregation", "keyed")
"""Queries of Spark whose checkpoints are frozen as well: these are savepoints of them."""
EVERY_LAYOUT = "every-layout"
KINDS: tuple[Kind, ...] = ("native", "canonical")


def main(version: str) -> None:
    """Write the folder ``version``, which must not be there."""
    folder = HERE / version
    folder.mkdir(parents=True)
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        query = written(Path(scratch) / "query", 2, seed=1)
        query.plan()
        locations = {EVERY_LAYOUT: query.location}
        for name in QUERIES:
            locations[name] = str(unpack("v1", name, Path(scratch) / f"{name}-query"))
        for name, location in locations.items():
            for kind in KINDS:
                taken = Path(scratch) / archive(name, kind)
                savepoint(location, str(taken), kind=kind)
                pack(taken, folder / f"{taken.name}.tar.gz")
        expected[EVERY_LAYOUT] = as_json(*stored(f"{scratch}/{EVERY_LAYOUT}"))
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    (folder / SUMS).write_text(sums(folder), encoding="ascii")


def archive(name: str, kind: Kind) -> str:
    """What the archive of a savepoint is called."""
    return name if kind == "native" else f"{name}-{kind}"


def as_json(version: int, partitions: int, rows: Logical) -> dict[str, Any]:
    """What a checkpoint holds, as it is kept."""
    states = {
        "/".join(map(str, where)): {key.decode(): value.hex() for key, value in sorted(each.items())}
        for where, each in sorted(rows.items())
    }
    return {"version": version, "partitions": partitions, "rows": states}


if __name__ == "__main__":
    main(sys.argv[1])
