"""One Spark session for every test that needs no cluster of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from integration import delta
from integration.jvm import JAVA_OPTIONS
from tests.services.cloud_services import azure, gcs
from tests.services.hdfs_service import hdfs
from tests.services.s3_server import s3, use_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["azure", "gcs", "hdfs", "s3", "spark"]

use_credentials()  # before any session starts: state servers have the environment of their JVM

PARTITIONS = 2
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    SHUFFLE_PARTITIONS: str(PARTITIONS),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.adaptive.enabled": "false",
    **(delta.CONFS if delta.JARS else {}),
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # the default from Spark 4.0 on
}


def new_session() -> SparkSession:
    """A local session with our jar on its class path."""
    from pyspark.sql import SparkSession

    import pyspark_ckpt

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = pyspark_ckpt.configure(SparkSession.builder.master("local[2]").appName("integration"))
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with our jar on its class path; each test picks its provider per query."""
    session = new_session()
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _same_confs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the shared session the confs back that it had before a test: a rescaling, for one, sets its session's."""
    if "spark" not in request.fixturenames:
        yield
        return
    conf = request.getfixturevalue("spark")._jsparkSession.sessionState().conf()
    before = dict(conf.settings())
    yield
    after = dict(conf.settings())
    for name in after.keys() - before.keys():
        conf.unsetConf(name)
    for name, value in before.items():
        if after.get(name) != value:
            conf.setConfString(name, value)
