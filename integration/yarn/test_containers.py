"""What a driver in a container of YARN finds: PySpark is a zip there, and there is no home of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

import pyspark_ckpt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
_FIND = """
import json, pyspark, pyspark_ckpt.session as session
print(json.dumps([pyspark.__file__, session.jar_path(), str(session._find_jars_of_spark())]))
"""


@pytest.mark.spark
def test_a_driver_finds_the_jars_that_its_jvm_has(spark: SparkSession, tmp_path: Path) -> None:
    gateway: Any = spark.sparkContext._gateway
    zips = sorted((HOME / "python" / "lib").glob("*.zip"))
    own = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    own |= {
        "PYTHONPATH": os.pathsep.join(map(str, zips)),
        "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
    }
    done = subprocess.run(
        [sys.executable, "-c", _FIND], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, jar, jars = json.loads(done.stdout)
    assert ".zip" in found
    assert jar == pyspark_ckpt.session.jar_path()
    assert Path(jars).resolve() == (HOME / "jars").resolve()
