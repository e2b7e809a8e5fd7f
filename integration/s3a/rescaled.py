"""Continue a query in s3a: from a savepoint with other partitions, and print its last output.

It then continues in a local checkpoint with its state in s3a:, of which another savepoint is taken.

``python -m integration.s3a.rescaled ROOT FOLDER SETTINGS``: ``SETTINGS`` is a JSON object of the session's confs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from integration.clouds.rescaled import REMOTE, count


def main(root: str, folder: Path, settings: dict[str, str]) -> None:
    """Count up to a savepoint, and after it."""
    builder = ckpt.configure(SparkSession.builder.master("local[2]"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    inputs, old, new = folder / "input", f"{root}/old", str(folder / "new")
    inputs.mkdir(exist_ok=True)
    count(spark, inputs, old, 2)
    ckpt.savepoint(old, f"{root}/saved")
    spark.conf.set(REMOTE, f"{root}/apart")
    ckpt.restore(f"{root}/saved", new, parallelism=3)
    shown = count(spark, inputs, new, 3)
    ckpt.savepoint(new, str(folder / "saved"))
    print(json.dumps(shown))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
