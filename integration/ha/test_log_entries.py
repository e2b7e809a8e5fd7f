"""Entries of Spark's logs as this package writes them, and the epochs of the runs that write them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.crash.driver import FORMAT, Driver
from integration.crash.faults import FORMATS
from integration.crash.reference import order, read_output
from integration.ha.places import s3_place
from integration.ha.stops import jars
from tests.faulty_s3 import Faults, proxy
from tests.s3_server import S3Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRY = re.compile(r"/(offsets|commits|runs)/[0-9]+(\.run)?\Z")
EPOCH = "spark.sql.streaming.ckpt.epoch"

pytestmark = pytest.mark.spark


def test_each_run_has_the_next_epoch_and_a_sink_can_read_it(spark: SparkSession, tmp_path: Path) -> None:
    epochs: list[str | None] = []

    def write(rows: DataFrame, _batch: int) -> None:
        epochs.append(rows.sparkSession.conf.get(EPOCH))
        rows.collect()

    for number in range(3):
        (tmp_path / "input").mkdir(exist_ok=True)
        (tmp_path / "input" / f"{number}.txt").write_text("a\n", encoding="utf-8")
        lines = spark.readStream.text(str(tmp_path / "input"))
        writer = lines.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(write)
        writer.trigger(availableNow=True).start().awaitTermination()
    assert epochs == ["1", "2", "3"]
    runs = sorted(path.name for path in (tmp_path / "checkpoint" / "_ckpt" / "runs").iterdir())
    assert runs == [f"000000000{number}.run" for number in (1, 2, 3)]
    assert not list((tmp_path / "checkpoint").rglob("*.tmp"))


@pytest.mark.matrix
def test_a_query_goes_on_when_the_answers_about_its_entries_are_lost(s3: S3Service, tmp_path: Path) -> None:
    lost: set[str] = set()
    current = threading.local()

    def note(method: str, path: str) -> None:
        current.loses = method == "PUT" and ENTRY.search(path) is not None and path not in lost
        if current.loses:
            lost.add(path)

    faults = Faults(next=lambda _method, _number: "no_answer" if current.loses else None, before=note)
    place = s3_place(s3)
    with proxy(s3.endpoint, faults) as endpoint:
        conf = {**place.conf, "spark.hadoop.fs.s3a.endpoint": endpoint}
        conf["spark.jars"] = ",".join([jars(tmp_path / "holding"), *place.jars])
        with Driver(tmp_path, conf=conf, program="integration.ha.program") as driver:
            runs = [
                order("windows", tmp_path / str(each), checkpoint=f"{place.url}/{each}", conf={FORMAT: str(each)})
                for each in FORMATS
            ]
            assert driver.order("outcomes", runs=[*runs, order("windows", tmp_path / "calm")]) == ["", "", ""]
    assert len(lost) == len(FORMATS) * (1 + 7 + 6)  # a number; the offsets of a batch more than were committed
    for each in FORMATS:
        assert read_output(tmp_path / str(each) / "windows") == read_output(tmp_path / "calm" / "windows")
