"""A driver is stopped, its successor commits, and it wakes up: nothing changes, and its error names the successor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from integration.crash.driver import FORMAT, OPTIONS, Driver
from integration.crash.faults import FAIL_POINTS, FORMATS
from integration.crash.reference import order, read_output
from integration.ha.places import Place, hdfs_place, local_place, s3_place
from integration.ha.stops import OURS, STEPS, await_marks, hold_at, jars, stop, wake
from integration.sample import ALL
from tests.faults.faulty_s3 import Faults, proxy
from tests.services.s3_server import S3Service

PROGRAM = "integration.ha.program"
MASTER = "local[16]"  # of some queries, tasks are held
SHORT, LONG = 4, 7
"""The batch before which the successor ends. A long one has deleted the entries of the batch that is held: the workload
keeps two."""
END = 8
REFUSALS = ("ConflictError", "CONCURRENT", "concurrently using", "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY")
"""What drivers are told that begin one query at the same time."""

pytestmark = [pytest.mark.spark, pytest.mark.kill]


class Case(NamedTuple):
    """A query whose driver is stopped at a step, and how far its successor comes meanwhile."""

    step: str
    version: int
    until: int = SHORT

    @property
    def name(self) -> str:
        """Name of its folders."""
        return f"{self.step}-v{self.version}-{self.until}"

    @property
    def query(self) -> str:
        """Of the workload; in one, user code runs before the operator commits."""
        return "keyed" if self.step == "in-tasks" else "windows"


EVERY = [
    *(Case(step, version) for step in STEPS for version in FORMATS),
    *(Case(step, version, LONG) for step in ("in-offsets", "in-commit") for version in FORMATS),
]
CASES = EVERY if ALL else [*EVERY[::3], Case("in-tasks", 2)]
"""Each step once, in either format."""


class Scene:
    """Queries in one place, each with a folder of its own."""

    def __init__(self, place: Place, folder: Path, cases: list[Case]) -> None:
        self.place, self.folder, self.cases = place, folder, cases

    def order(self, case: Case, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """An order to run a query."""
        conf = {FORMAT: str(case.version), **more.pop("conf", {})}
        where = {"checkpoint": f"{self.place.url}/{case.name}", "conf": conf}
        return order(case.query, self.folder / case.name, **where, **more)

    def look(self) -> dict[Case, Any]:
        """Spark's logs and the output of each query."""
        return {
            case: (self.place.read_logs(case.name), read_output(self.folder / case.name / case.query))
            for case in self.cases
        }

    def succeed(self, driver: Driver) -> None:
        """Let a second driver take over each query."""
        runs = [self.order(case, until=case.until) for case in self.cases]
        assert driver.order("outcomes", runs=runs) == [""] * len(runs)

    def replace(self, first: Driver, second: Driver, marks: Iterable[Path]) -> None:
        """Stop the first driver, let the second one take over, wake the first: it must change nothing, and end.

        ``marks``: of steps at which it is held until it is woken.
        """
        stopped = stop(first)
        self.succeed(second)
        before = self.look()
        wake(stopped, marks)
        self.check_failures(first.receive())
        assert self.look() == before
        self.finish(second)

    def check_failures(self, failures: list[str]) -> None:
        """Fail unless each query has ended because of its successor."""
        for case, failure in zip(self.cases, failures, strict=True):
            assert "ConflictError" in failure, case
            assert "is over: run 2 (run id " in failure, case
            if case.step == "in-tasks":
                assert "is not committed" in failure, "the state server has refused it"

    def finish(self, driver: Driver) -> None:
        """Run each query to its end, and compare state and output with queries that nobody has stopped."""
        calm = self.folder / "calm"
        queries = sorted({case.query for case in self.cases})
        runs = [self.order(case, until=END) for case in self.cases]
        runs += [order(query, calm, until=END) for query in queries]
        assert driver.order("outcomes", runs=runs) == [""] * len(runs)
        states = {query: driver.state(query, calm / query) for query in queries}
        for case in self.cases:
            folder = self.folder / case.name / case.query
            assert read_output(folder) == read_output(calm / case.query), case
            conf = {f"{OPTIONS}{key}": value for key, value in self.place.options.items()}
            assert driver.state(case.query, folder, conf, f"{self.place.url}/{case.name}") == states[case.query], case


class Start:
    """Starts drivers, which end with the test."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder

    def __call__(self, count: int, place: Place, **conf: str) -> list[Driver]:
        """Start drivers side by side. ``conf``: of the first one."""
        classes = ",".join([jars(self._folder / "holding"), *place.jars])
        first = {key.replace("__", "."): value for key, value in conf.items()}
        made = [
            Driver(self._folder / f"driver-{n}", MASTER, {**place.conf, "spark.jars": classes, **own}, program=PROGRAM)
            for n, own in enumerate([first, *[{}] * (count - 1)])
        ]
        return [self._stack.enter_context(driver) for driver in made]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start drivers with the jars of a place."""
    with ExitStack() as stack:
        yield Start(stack, tmp_path)


@pytest.fixture(params=["local", *(pytest.param(each, marks=pytest.mark.matrix) for each in ("s3", "hdfs"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of each kind of place."""
    if request.param == "local":
        return local_place(tmp_path / "checkpoints")
    service = request.getfixturevalue(request.param)
    return s3_place(service) if request.param == "s3" else hdfs_place(service)


@pytest.mark.in_turn
def test_nothing_changes_when_a_driver_wakes_up_that_was_stopped_at_any_step(
    place: Place, start: Start, tmp_path: Path
) -> None:
    scene, marks = Scene(place, tmp_path, CASES), {case: tmp_path / f"{case.name}.mark" for case in CASES}
    first, second = start(2, place)
    first.send("outcomes", runs=[scene.order(case, **hold_at(case.step, marks[case], OURS)) for case in CASES])
    await_marks(marks.values())
    scene.replace(first, second, marks.values())


@pytest.mark.matrix
def test_nothing_changes_when_the_entry_of_a_stopped_driver_is_still_on_its_way_to_s3(
    s3: S3Service, start: Start, tmp_path: Path
) -> None:
    cases = [Case(*each) for each in product(("offsets", "commits"), FORMATS, (SHORT, LONG))]
    marks = {case: tmp_path / f"{case.name}.mark" for case in cases}

    def hold(method: str, path: str) -> None:
        for case, mark in marks.items():
            if method == "PUT" and path.endswith(f"/{case.name}/{case.step}/2") and not mark.exists():
                mark.touch()
                await_marks([mark.with_name(f"{mark.name}.go")])

    with proxy(s3.endpoint, Faults(before=hold)) as endpoint:
        place = s3_place(s3)
        scene = Scene(place, tmp_path, cases)
        first, second = start(2, place, spark__hadoop__fs__s3a__endpoint=endpoint)
        first.send("outcomes", runs=[scene.order(case) for case in cases])
        await_marks(marks.values())
        scene.replace(first, second, marks.values())


@pytest.mark.matrix
def test_nothing_changes_when_a_state_server_wakes_up_in_an_upload(start: Start, tmp_path: Path) -> None:
    points = ("commit.before_upload", "commit.after_upload")
    armed = {FAIL_POINTS: ",".join(f"{point}:sleep=5000@10" for point in points)}
    place = local_place(tmp_path / "checkpoints")
    scene = Scene(place, tmp_path, [Case("upload", version, LONG) for version in FORMATS])
    first, second = start(2, place)
    first.send("outcomes", runs=[scene.order(case, conf=armed) for case in scene.cases])
    for point in points:
        first.await_fired(point)
    scene.replace(first, second, [])


@pytest.mark.matrix
def test_state_and_output_are_right_when_drivers_race_for_new_queries(
    place: Place, start: Start, tmp_path: Path
) -> None:
    scene = Scene(place, tmp_path, [Case(f"race-{n}", version) for n in range(4) for version in FORMATS])
    drivers = start(3, place)
    for driver in drivers:
        driver.send("outcomes", runs=[scene.order(case, until=END, conf={}) for case in scene.cases])
    outcomes = [driver.receive() for driver in drivers]
    for case, *failures in zip(scene.cases, *outcomes, strict=True):
        assert failures.count("") <= 1, case
        for failure in filter(None, failures):
            assert any(word in failure for word in REFUSALS), (case, failure)
    scene.finish(drivers[0])
