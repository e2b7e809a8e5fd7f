"""The file sink of a woken driver: readers see each row once, and nothing of the driver that is over."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from integration.crash.driver import FORMAT, Driver
from integration.crash.faults import FORMATS
from integration.ha.stops import OURS, await_marks, hold_entry, jars, stop, wake

FILES, ROWS = 6, 20

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.matrix]


def test_the_file_sink_has_each_row_once_when_a_driver_wakes_up_in_it(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS // 2, number * ROWS // 2 + ROWS)
        (tmp_path / "input" / f"{number}.txt").write_text("\n".join(map(str, rows)), encoding="utf-8")
    conf = {"spark.jars": jars(tmp_path / "holding")}
    cases = list(product(("_spark_metadata", "sources/0"), ("before", "write"), FORMATS))
    marks = {case: tmp_path / f"{number}.mark" for number, case in enumerate(cases)}
    folders = {case: str(tmp_path / str(number)) for number, case in enumerate(cases)}
    first, second = (Driver(tmp_path / name, "local[4]", conf, program="integration.ha.program") for name in ("1", "2"))
    with first, second:
        held = []
        for (log, moment, version), mark in marks.items():
            more = {FORMAT: str(version), **hold_entry(f"{log}/2", moment, mark, OURS)}
            held.append({"folder": folders[log, moment, version], "conf": more})
        first.send("distinct_lines", source=str(tmp_path / "input"), runs=held)
        await_marks(marks.values())
        stopped = stop(first)
        runs = [{"folder": folders[case], "conf": {FORMAT: str(case[2])}} for case in cases]
        assert second.order("distinct_lines", source=str(tmp_path / "input"), runs=runs) == [""] * len(cases)
        before = {case: second.order("read_lines", folder=folders[case]) for case in cases}
        wake(stopped, marks.values())
        for case, failure in zip(cases, first.receive(), strict=True):
            assert "is over: run 2 (run id " in failure, case
        for case in cases:
            assert before[case] == list(range((FILES - 1) * ROWS // 2 + ROWS)), case
            assert second.order("read_lines", folder=folders[case]) == before[case], case
