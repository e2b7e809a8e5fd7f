"""Write the archive of Spark's classes for the JVMs of tests: ``python -m integration.class_archive FILE``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyspark_ckpt
from integration.crash import program
from integration.jvm import SILENT
from tests.services.java_program import SHORT_LIFE

QUERIES = ("windows", "join", "keyed")
END_S = 300


def main(archive: Path) -> None:
    """Write ``archive``, of the classes of queries with state."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = pyspark_ckpt.configure(SparkSession.builder.master("local[2]").appName("class archive"))
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join([*SHORT_LIFE, f"-XX:ArchiveClassesAtExit={archive}", SILENT]),
        "spark.log.level": "OFF",  # the queries end by an error
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryDirectory() as folder:
        spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
        program.run(spark, [{"name": name, "folder": f"{folder}/{name}", "until": 1} for name in QUERIES])
        program.state(spark, "windows", f"{folder}/windows")
        gateway = spark.sparkContext._gateway  # the JVM writes the archive when it ends
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(END_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
