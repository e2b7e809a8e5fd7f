"""Freeze what the present code writes: ``python -m tests.compat.write v2`` makes ``tests/compat/v2``.

To be run once for each stored format that is released, and once on each release of Spark, with its Python and a name
such as ``spark-4.0``; CONTRIBUTING.md says how. It needs the jar, and is the only thing here that starts Spark.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.pyspark_releases import find_minor_release, find_release
from tests.compat.contents import digests
from tests.compat.frozen import EXPECTED, HERE, SPARK, SUMS, pack, sums
from tests.compat.queries import CASES, run_batch
from tests.compat.stores import write_format_1, write_format_2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = ("store-format-2", write_format_2), ("store-format-1", write_format_1)
BATCHES = 2
"""Of each query, before it is frozen; one more shows what a query does that continues from it."""


def main(name: str) -> None:
    """Write the folder ``name``, which must not be there."""
    if name.startswith(SPARK) and name != f"{SPARK}{find_minor_release()}":
        raise SystemExit(f"{name} has to be written on that Spark, and this is {find_release()}.")
    folder = HERE / name
    folder.mkdir()
    expected: dict[str, Any] = {"made by": {each: version(each) for each in ("pyspark-ckpt", "pyspark", "rocksdict")}}
    with tempfile.TemporaryDirectory() as scratch:
        stores = {}
        for store, write in () if name.startswith(SPARK) else STORES:
            checkpoint, rows = write(Path(scratch) / store)
            pack(checkpoint, folder / f"{store}.tar.gz")
            stores[store] = rows
        expected["stores"] = stores
        spark = new_session()
        expected["queries"] = {query: _query(spark, query, Path(scratch), folder) for query in CASES}
        spark.stop()
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / SUMS).write_text(sums(folder), encoding="ascii")


def _query(spark: SparkSession, name: str, scratch: Path, folder: Path) -> dict[str, Any]:
    """Freeze the checkpoint of one query: what it has shown, what is in it, and what the next run shows."""
    checkpoint = scratch / name
    shown: dict[str, list[str]] = {}
    for _ in range(BATCHES):
        shown |= run_batch(spark, CASES[name], str(checkpoint))
    pack(checkpoint, folder / f"{name}.tar.gz")
    contents = digests(checkpoint)
    return {"shown": shown, "stored": contents, "goes on": run_batch(spark, CASES[name], str(checkpoint))}


def new_session() -> SparkSession:
    """A local session, configured as users do it."""
    from pyspark.sql import SparkSession

    import pyspark_ckpt

    builder = pyspark_ckpt.configure(SparkSession.builder.master("local[2]").appName("compat"))
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main(sys.argv[1])
