"""Savepoints of Spark's transformWithState that each Spark has left: where they lie, and how they were made.

::

    tests/compat/processors/spark-<release>/saved.tar.gz    a whole savepoint
    tests/compat/processors/spark-<release>/expected.json   what the query shows that goes on from it
    tests/compat/processors/spark-<release>/SHA256SUMS      of all other files: nothing here changes

``python -m tests.compat.frozen_processors``, with the Python of a Spark, writes the folder of that Spark.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pyspark_ckpt.pyspark_releases import find_minor_release
from pyspark_ckpt.savepoints import savepoint
from tests.compat.frozen import EXPECTED, SPARK, SUMS, pack, sums
from tests.compat.queries import PROCESSOR, run_batch
from tests.compat.write import BATCHES, new_session

PROCESSORS = "processors"
HERE = Path(__file__).parent / PROCESSORS
VERSIONS = sorted(path.parent.name for path in HERE.glob(f"*/{SUMS}"))
SAVED = "saved"


def expected(version: str) -> dict[str, list[str]]:
    """What the query shows that goes on."""
    content: dict[str, list[str]] = json.loads((HERE / version / EXPECTED).read_text(encoding="utf-8"))
    return content


def main() -> None:
    """Write the folder of the Spark that is installed, which must not be there."""
    folder = HERE / f"{SPARK}{find_minor_release()}"
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, saved = Path(scratch) / "query", Path(scratch) / SAVED
        spark = new_session()
        for _ in range(BATCHES):
            run_batch(spark, PROCESSOR, str(checkpoint))
        savepoint(str(checkpoint), str(saved))
        pack(saved, folder / f"{SAVED}.tar.gz")
        shown = run_batch(spark, PROCESSOR, str(checkpoint))
        spark.stop()
    (folder / EXPECTED).write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / SUMS).write_text(sums(folder), encoding="ascii")


if __name__ == "__main__":
    main()
