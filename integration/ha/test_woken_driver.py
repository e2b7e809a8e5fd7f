"""A driver is stopped, its successor commits, and it wakes up: nothing changes, and its error names the successor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from integration.crash.driver import FORMAT, Driver
from integration.crash.faults import FORMATS
from integration.crash.reference import order, read_output
from integration.ha.places import Place, hdfs_place, local_place, s3_place
from integration.ha.stops import OURS, STEPS, await_marks, hold_at, jars, stop, wake

PROGRAM = "integration.ha.program"
MASTER = "local[16]"  # of two queries, tasks are held
QUERIES = dict.fromkeys(STEPS, "windows") | {"in-tasks": "keyed"}
CASES = list(product(STEPS, FORMATS))
UNTIL = 4  # the successor commits two batches, and has planned a third

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.matrix), pytest.param("hdfs", marks=pytest.mark.matrix)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of each kind of place."""
    if request.param == "local":
        return local_place(tmp_path / "checkpoints")
    service = request.getfixturevalue(request.param)
    return s3_place(service) if request.param == "s3" else hdfs_place(service)


@pytest.fixture
def drivers(place: Place, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Driver]]:
    """A driver that is stopped, and its successor."""
    conf = {**place.conf, "spark.jars": ",".join([jars(tmp_path_factory.getbasetemp() / "holding"), *place.jars])}
    first, second = (Driver(tmp_path / name, MASTER, conf, program=PROGRAM) for name in ("first", "second"))
    with first, second:
        yield first, second


def test_a_woken_driver_changes_nothing_and_its_error_names_the_successor(
    place: Place, drivers: tuple[Driver, Driver], tmp_path: Path
) -> None:
    first, second = drivers
    marks = {case: tmp_path / f"{_name(case)}.mark" for case in CASES}

    def orders(**more: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
        return [_order(case, place, tmp_path, **more) for case in CASES]

    def seen() -> dict[tuple[str, int], Any]:
        return {case: (place.read_logs(_name(case)), read_output(_folder(case, tmp_path))) for case in CASES}

    first.send("outcomes", runs=[_order(case, place, tmp_path, **hold_at(case[0], marks[case], OURS)) for case in CASES])
    await_marks(marks.values())
    stopped = stop(first)
    assert second.order("outcomes", runs=orders(until=UNTIL)) == [""] * len(CASES)
    before = seen()
    wake(stopped, marks.values())
    for case, failure in zip(CASES, first.receive(), strict=True):
        assert "ConflictError" in failure, case
        assert "is over: run 2 (run id " in failure, case
    assert seen() == before

    calm = [order(query, tmp_path / "calm") for query in sorted(set(QUERIES.values()))]
    assert set(second.order("outcomes", runs=[*orders(), *calm])) == {""}
    for case in CASES:
        query, folder = QUERIES[case[0]], _folder(case, tmp_path)
        assert read_output(folder) == read_output(tmp_path / "calm" / query), case
        found = second.state(query, folder, checkpoint=f"{place.url}/{_name(case)}")
        assert found == second.state(query, tmp_path / "calm" / query), case


def _name(case: tuple[str, int]) -> str:
    return f"{case[0]}-v{case[1]}"


def _folder(case: tuple[str, int], root: Path) -> Path:
    return root / _name(case) / QUERIES[case[0]]


def _order(case: tuple[str, int], place: Place, root: Path, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    conf = {FORMAT: str(case[1]), **more.pop("conf", {})}
    where = {"checkpoint": f"{place.url}/{_name(case)}", "conf": conf}
    return order(QUERIES[case[0]], root / _name(case), **where, **more)
