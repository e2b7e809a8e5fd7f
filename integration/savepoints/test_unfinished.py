"""A query is started on what a restore has left unfinished: Spark's own error says what the folder is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from pyspark_ckpt import savepoints
from tests.labs.saved_query import files, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_shows_what_to_do_if_a_restore_has_not_finished(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(tmp_path / "query", 1, operators=(1,), batches=1), tmp_path / "restored"
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_logs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.restore(query.location, str(target), parallelism=2)
    before = files(target)
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    with pytest.raises(Py4JJavaError) as refused:
        writer.option("checkpointLocation", str(target)).start()
    assert f"{target} is an unfinished restore of {query.location}, not a checkpoint." in str(refused.value)
    assert "Repeat the same restore or rescale with the same arguments" in str(refused.value)
    assert files(target) == before
