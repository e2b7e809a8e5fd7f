"""Delta for the Spark that is installed: jars that ``make`` has fetched, and confs."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.pyspark_releases import find_release

_RELEASE = ".".join(find_release().split(".")[:2])
JARS = sorted((Path(__file__).parents[1] / ".tools" / "delta" / _RELEASE).glob("*.jar"))
"""None if there is no Delta for this Spark."""
CONFS = {
    "spark.driver.extraClassPath": ":".join(map(str, JARS)),
    "spark.databricks.delta.requiredSparkConfsCheck.enabled": "false",  # nothing but its sink is used
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Those of a session that has it."""
