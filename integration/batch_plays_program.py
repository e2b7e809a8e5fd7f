"""Plays of ``integration.operators.batch_plays`` in a process of their own, in either kind of session.

``python -m integration.batch_plays_program connect|classic FOLDER RUNS`` prints what they tell in its last line: JSON.
``RUNS`` is JSON, see ``perform``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from integration.operators.batch_plays import perform
from tests.services.ports import find_free_port

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
}


def make_session(kind: str) -> SparkSession:
    """Start a session; that of a Connect client has a server in this process tree."""
    builder: Any = SparkSession.builder
    if kind == "connect":
        from pyspark.sql.connect.client import DefaultChannelBuilder

        port = find_free_port()
        DefaultChannelBuilder.default_port = staticmethod(lambda: port)  # type: ignore[method-assign]
        builder = builder.remote("local[4]").config("spark.connect.grpc.binding.port", str(port))
        builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    else:
        builder = builder.master("local[4]")
    for key, value in {**ckpt.session.spark_conf(python=sys.executable), **SETTINGS}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def main(kind: str, folder: str, runs: str) -> None:
    """Perform the plays."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = make_session(kind)
    found = perform(spark, Path(folder), json.loads(runs))
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
