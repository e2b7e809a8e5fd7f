"""A machine loses its power while a query runs: what a disk has then must be enough to go on exactly once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from integration.crash.driver import FORMAT, Driver
from integration.crash.faults import FORMATS
from integration.crash.lost_power import Disk, NoDiskError, make_image, mounted
from integration.crash.processes import eventually
from integration.line_files import write_files
from pyspark_ckpt.cli.checkpoints import open_to_verify, verify
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.in_turn]

FILES = 12
KEYS = 7
MOMENTS = (2, 5)
"""How many batches the sink has when the power is lost."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """An empty file system of its own."""
    try:
        make_image(tmp_path / "disk.img")
        with mounted(tmp_path / "disk.img", tmp_path / "disk") as made:
            yield made
    except NoDiskError as problem:
        pytest.skip(f"NOT RUN: needs root, loop devices and mkfs.ext4 ({problem}).")


def _has_batches(sink: Path, wanted: int) -> bool:
    return len(list(sink.iterdir())) >= wanted


@pytest.mark.parametrize("version", FORMATS)
def test_a_query_goes_on_exactly_once_when_the_machine_has_lost_its_power(
    disk: Disk, version: int, tmp_path: Path
) -> None:
    lines, sink = tmp_path / "lines", tmp_path / "sink"
    sink.mkdir()
    expected = _write_lines(lines)
    with Driver(tmp_path, conf={FORMAT: str(version), "spark.sql.shuffle.partitions": "2"}, program=PROGRAM) as driver:
        query = driver.order("begin", lines=str(lines), checkpoint=str(disk.path / "checkpoint"), sink=str(sink))
        for moment in MOMENTS:
            eventually(f"{moment} batches", partial(_has_batches, sink, moment))
            disk.copy_as_power_is_lost(driver.mark, tmp_path / f"{moment}.img")
            shutil.copytree(sink, tmp_path / f"sink{moment}")
    with ExitStack() as mounts:
        copies = [mounts.enter_context(mounted(tmp_path / f"{each}.img", tmp_path / f"{each}")) for each in MOMENTS]
        for moment, copy in zip(MOMENTS, copies, strict=True):
            _require_whole(copy.path / "checkpoint", tmp_path / f"sink{moment}")
        with Driver(tmp_path, conf={"spark.sql.shuffle.partitions": "2"}, program=PROGRAM) as driver:
            for moment, copy in zip(MOMENTS, copies, strict=True):
                its = tmp_path / f"sink{moment}"
                again = driver.order(
                    "finish", lines=str(lines), checkpoint=str(copy.path / "checkpoint"), sink=str(its)
                )
                assert again == query
                assert _read_counts(its) == expected


PROGRAM = "integration.crash.power_program"


def _write_lines(folder: Path) -> Counter[str]:
    """Write the files, in the order in which Spark reads them; return how often each line is there."""
    files = [[f"key {(number + each) % KEYS}" for each in range(1 + number % 3)] for number in range(FILES)]
    write_files(folder, files)
    return Counter(chain.from_iterable(files))


def _require_whole(checkpoint: Path, sink: Path) -> None:
    """No file of the query is empty or cut, and what the sink has of a batch was planned before."""
    files = [path for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert [str(path) for path in files if path.stat().st_size == 0] == []
    assert verify(open_to_verify(str(checkpoint), {}), None, as_json=True) == 0
    assert {int(each.name) for each in sink.iterdir()} <= list_batches(LocalPlace(checkpoint), "offsets")


def _read_counts(sink: Path) -> dict[str, int]:
    """The newest count of each line."""
    found: dict[str, int] = {}
    for batch in sorted(int(each.name) for each in sink.iterdir()):
        found |= json.loads((sink / str(batch)).read_text(encoding="utf-8"))
    return found
