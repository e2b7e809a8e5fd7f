"""The table of docs/sinks.md: what each sink has when a query goes back, or goes on in another checkpoint."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException

import pyspark_ckpt as ckpt
from integration import delta
from integration.operators.providers import OURS, ROCKSDB
from integration.savepoints.returning import FORMATS, Files
from integration.savepoints.sinks import KINDS, skipping_sink
from integration.short import has
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.running.outcome import RescaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
SINK_AHEAD = "spark.sql.streaming.stateStore.ckpt.sinkAhead"
SINKS = ("files", "Delta", "notes the batch", "replaces", "appends")
ONCE, TWICE, LOST, REFUSED, FAILS = "once", "twice", "lost", "refused", "fails"
LATER = (3, 4, 5)
NEW = (6, 7, 8)
USERS = list(range(NEW[-1] + 1))


def restore(files: Files, *, saved: str = "saved", replay_from: str | None = None, **options: str) -> None:
    """Restore a savepoint, by default that of batch 2, and run what there is."""
    given = ["--replay-from", str(files.folder / replay_from)] if replay_from else []
    assert main(["savepoint", "restore", str(files.folder / saved), str(files.folder / "new"), *given]) == 0
    files.run("new", **options)


def skip(files: Files) -> None:
    files.session.conf.set(SINK_AHEAD, "skip")
    restore(files, maxFilesPerTrigger="1")


def rescale(files: Files, old: str, partitions: int, new: str, **options: str) -> None:
    ckpt.rescale(
        files.folder / old,
        lambda checkpoint: files.start(checkpoint, **options),
        partitions,
        new_checkpoint=files.folder / new,
    ).query.awaitTermination()


def move(files: Files) -> None:
    """The batches after the savepoint run on another checkpoint."""
    files.put(*LATER)
    rescale(files, "old", 3, "moved", maxFilesPerTrigger="1")
    files.put(*NEW)


def go_back(files: Files) -> None:
    move(files)
    rescale(files, "old", 4, "new")


def replay_moved(files: Files) -> None:
    move(files)
    ckpt.savepoint(files.folder / "old", files.folder / "again")
    restore(files, saved="again", replay_from="moved")


def begun(way: Callable[[Files], None]) -> Callable[[Files], None]:
    """The driver has died when the sink had batch 5, and the checkpoint had not."""

    def go(files: Files) -> None:
        files.forget_commit(LATER[-1])
        way(files)

    return go


def save(files: Files) -> None:
    ckpt.savepoint(files.folder / "old", files.folder / "again")
    restore(files, saved="again")


def rescale_stopped(files: Files) -> None:
    ckpt.restore(files.folder / "old", files.folder / "new", parallelism=3)
    files.run("new")


def hand_back(files: Files) -> None:
    ckpt.moving.hand_back(files.folder / "old", files.folder / "Spark's")
    files.use(ROCKSDB)
    files.run("Spark's")


def adopt(files: Files) -> None:
    ckpt.moving.hand_back(files.folder / "old", files.folder / "Spark's")
    ckpt.moving.adopt(files.folder / "Spark's", files.folder / "new")
    files.use(OURS if has("4.2") else OURS.in_format(1))  # that of the checkpoint, which later Sparks can change
    files.run("new")


def write_state(files: Files) -> None:
    ckpt.writing.write_state(files.folder / "old", files.folder / "again", [])
    restore(files, saved="again")


def compose(files: Files, replay_from: str | None = None) -> None:
    ckpt.writing.compose_savepoint(files.folder / "again", [(files.folder / "old", 0)])
    restore(files, saved="again", replay_from=replay_from)


class Once(ckpt.KeyedProcessor):
    """Lets each user through once."""

    seen = ckpt.ValueState("seen", "boolean", default=False)

    def process(self, _ctx: ckpt.Context, key: Any, _rows: Any) -> Iterator[Any]:  # noqa: ANN401
        if not self.seen.value():
            self.seen.update(True)
            yield (key.user,)


def begin_with_state(files: Files) -> None:
    """A query that has never run has the state of the old one."""
    seen = files.session.range(LATER[-1] + 1).selectExpr("id AS user", "true AS value")
    ckpt.writing.write_state(
        None,
        files.folder / "again",
        [ckpt.writing.Put("once", Once.seen, seen, key="user long")],
        parallelism=2,
        checkpoint_format=FORMATS[-1],
    )
    files.program = lambda rows: ckpt.keyed(rows, by="user", uid="once").process(Once(), "user long", "append")
    restore(files, saved="again")


CASES: dict[str, tuple[Callable[[Files], None], tuple[str, ...]]] = {
    "`restore` with `replay_from`": (lambda files: restore(files, replay_from="old"), (ONCE, ONCE, ONCE, ONCE, TWICE)),
    "`restore`, the same rows in each batch, `sinkAhead=skip`": (skip, (ONCE, ONCE, ONCE, ONCE, TWICE)),
    "`restore`, other rows in each batch": (
        lambda files: restore(files, maxFilesPerTrigger="2"),
        (REFUSED, REFUSED, LOST, ONCE, TWICE),
    ),
    "`restore`, fewer batches than before": (restore, (REFUSED, REFUSED, LOST, TWICE, TWICE)),
    "`rescale` back to the old checkpoint": (go_back, (REFUSED, REFUSED, LOST, TWICE, TWICE)),
    "a savepoint of the old checkpoint, `restore` with `replay_from`": (replay_moved, (ONCE, ONCE, ONCE, ONCE, TWICE)),
    "`savepoint` and `restore`": (begun(save), (ONCE, ONCE, ONCE, ONCE, TWICE)),
    "`restore` of the stopped checkpoint, with another `parallelism`": (
        begun(rescale_stopped),
        (ONCE, ONCE, ONCE, ONCE, TWICE),
    ),
    "`rescale`": (
        begun(lambda files: rescale(files, "old", 3, "new")),
        (ONCE, ONCE, ONCE, ONCE, TWICE),
    ),
    "`hand_back`": (begun(hand_back), (FAILS, FAILS, ONCE, ONCE, TWICE)),
    "`hand_back` and `adopt`": (begun(adopt), (ONCE, ONCE, ONCE, ONCE, TWICE)),
    "`write_state`": (begun(write_state), (ONCE, ONCE, ONCE, ONCE, TWICE)),
    "`compose_savepoint`": (begun(compose), (REFUSED, REFUSED, LOST, ONCE, TWICE)),
    "`compose_savepoint`, `restore` with `replay_from`": (
        begun(lambda files: compose(files, "old")),
        (ONCE, ONCE, ONCE, ONCE, TWICE),
    ),
    "`write_state(None, ...)`": (begin_with_state, (REFUSED, ONCE, ONCE, LOST, ONCE)),
    "a new query, after the checkpoint was deleted": (
        lambda files: files.run("new"),
        (REFUSED, TWICE, TWICE, TWICE, TWICE),
    ),
}
"""What a sink has at the end, by ways on which a query goes on, and by sinks. It has committed the batches 0 to 5."""
MOVED = (go_back, replay_moved)
"""Those that begin when the query has committed the batches 0 to 2."""


@pytest.fixture(scope="module", params=KINDS)
def query(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Files]]:
    """A kind of sinks, and a query that has committed the batches 0 to 5, with rows for later ones."""
    with skipping_sink(spark) if request.param == "Delta" and not delta.JARS else nullcontext():
        files = Files(spark, tmp_path_factory.mktemp("query"), FORMATS[-1], KINDS[request.param].write, LATER)
        files.put(*NEW)
        yield request.param, files


def describe(found: list[int]) -> str:
    """The outcome, from the rows of a sink."""
    if sorted(found) == USERS:
        return ONCE
    return TWICE if set(found) == set(USERS) else LOST


@pytest.mark.in_turn
@pytest.mark.parametrize("way", CASES)
def test_a_sink_has_the_rows_that_the_page_says(
    way: str, query: tuple[str, Files], spark: SparkSession, tmp_path: Path
) -> None:
    kind, begun = query
    go, outcomes = CASES[way]
    files = Files(spark, tmp_path, FORMATS[-1], KINDS[kind].write, ()) if go in MOVED else begun.copy(tmp_path)
    failed = ""
    try:
        go(files)
    except (IllegalArgumentException, RescaleError, StreamingQueryException) as failure:
        failed = REFUSED if "which would be lost" in str(failure) else FAILS
        has_started = isinstance(failure, StreamingQueryException)
        assert not has_started or failed == FAILS or (kind == "Delta" and not delta.JARS)
    found = {sink: failed or describe(rows) for sink, rows in KINDS[kind].read(files.folder / "output").items()}
    assert found == {sink: each for sink, each in zip(SINKS, outcomes, strict=True) if sink in found}


def test_the_page_says_what_is_tested() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, _, *rows = re.findall(r"^\|.*\|$", text[text.index("## What happens in each case") :], re.MULTILINE)
    table = [[cell.strip(" *") for cell in row.strip("|").split(" | ")] for row in (head, *rows)]
    assert table == [["", *SINKS], *([way, *outcomes] for way, (_, outcomes) in CASES.items())]
