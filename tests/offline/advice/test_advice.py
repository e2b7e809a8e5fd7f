"""Whether more partitions would help: the answer, its reasons, and what it says when the figures do not suffice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.advice.progress_figures import BatchFigures, OperatorFigures, find_progress, read_figures
from pyspark_ckpt.offline.advice.rules import judge
from pyspark_ckpt.offline.advice.state_figures import StateFigures
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.lab import QUERY
from tests.labs.saved_query import written

EVEN = StateFigures(0, "keyed visits", (100, 100, 100, 100), (1000,) * 4, 128, keeps_one=False)
OPERATOR = OperatorFigures(0, "applyInPandasWithState", 4, 3800.0, 400.0, 400, None)
BUSY = BatchFigures(10, 1200.0, 1100.0, None, (OPERATOR,))
TARGET_S = 60.0


def progress(batch: int, *, task_ms: int = 900, run: str = "run", query: str = QUERY, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """The progress of a batch, as Spark writes it."""
    operators = [
        {"operatorName": name, "numShufflePartitions": 3, "numRowsTotal": 10, "allUpdatesTimeMs": ms, "commitTimeMs": 5}
        for name, ms in (("first", task_ms), ("second", 1), ("third", 1))
    ]
    return {
        "id": query,
        "runId": run,
        "timestamp": f"2026-01-01T00:{batch // 10:02}:{batch % 10 * 6:02}.000Z",
        "batchId": batch,
        "numInputRows": 10,
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "stateOperators": operators,
        **more,
    }


def test_more_partitions_are_recommended_where_cores_are_idle() -> None:
    found = judge([EVEN], BUSY, 16, TARGET_S)
    assert (found.verdict, found.recommended) == ("more", 16)
    assert "86% of the 1,100 ms" in found.reasons[0].text
    assert judge([EVEN], BUSY, 6, TARGET_S).recommended == 8, "a multiple, to which state moves quickly"
    limited = judge([replace(EVEN, max_partitions=12)], BUSY, 16, TARGET_S)
    assert limited.recommended == 12
    full = judge([replace(EVEN, max_partitions=4)], BUSY, 16, TARGET_S)
    assert (full.verdict, full.recommended) == ("stay", None)
    assert "max_parallelism" in full.reasons[-1].text


def test_the_number_stays_where_all_cores_work_or_the_time_goes_elsewhere() -> None:
    assert judge([EVEN], BUSY, 4, TARGET_S).verdict == "stay"
    idle = replace(BUSY, run_ms=10_000.0)
    found = judge([EVEN], idle, 16, TARGET_S)
    assert found.verdict == "stay"
    assert "the time goes elsewhere" in found.reasons[0].text


def test_a_hot_key_speaks_against_more_partitions() -> None:
    hot = replace(EVEN, rows=(1000, 10, 10, 10))
    found = judge([hot], replace(BUSY, run_ms=10_000.0), 16, TARGET_S)
    assert found.verdict == "stay"
    assert any("partition 0, 1,000" in each.text for each in found.reasons if each.favours == "stay")
    busy = judge([hot], BUSY, 16, TARGET_S)
    assert busy.verdict == "stay", "all cores but one would wait for it"
    assert "has 97% of the rows, and takes about 3,689 ms alone" in busy.reasons[0].text


def test_a_few_rows_say_nothing_about_their_spread() -> None:
    few = replace(EVEN, rows=(3, 0, 0, 0))
    found = judge([few], None, None, TARGET_S)
    assert found.verdict == "unknown"
    assert any("has 3 rows in 4 partitions: too few to judge" in each.text for each in found.reasons)


def test_small_tasks_speak_for_fewer_partitions() -> None:
    many = replace(EVEN, rows=(10,) * 200, sizes_bytes=(10,) * 200)
    operators = (replace(OPERATOR, partitions=200),)
    found = judge([many], replace(BUSY, run_ms=500.0, operators=operators), 4, TARGET_S)
    assert (found.verdict, found.recommended) == ("fewer", 8)


def test_long_restores_and_large_partitions_speak_for_more() -> None:
    slow = replace(BUSY, run_ms=10_000.0, operators=(replace(OPERATOR, forecast_ms=90_000),))
    assert judge([EVEN], slow, 4, TARGET_S).verdict == "more"
    large = replace(EVEN, sizes_bytes=(5 << 30, 1, 1, 1))
    assert (found := judge([large], None, None, TARGET_S)).verdict == "more"
    assert found.recommended == 8


def test_the_figures_do_not_suffice_without_batches_or_cores() -> None:
    for batches, cores, why in (
        (None, 16, "no batch with data"),
        (BUSY, None, "without the number of cores"),
        (replace(BUSY, batches=2, left_out=7), 16, "count: 2. Times are judged from 3 on. 7 more do not count"),
        (
            replace(BUSY, operators=(replace(OPERATOR, partitions=2),)),
            16,
            "with 2 partitions, but the checkpoint has 4",
        ),
    ):
        found = judge([EVEN], batches, cores, TARGET_S)
        assert (found.verdict, found.recommended) == ("unknown", None)
        assert any(why in each.text for each in found.reasons)


def test_state_in_one_place_cannot_be_spread() -> None:
    found = judge([replace(EVEN, rows=(5,), sizes_bytes=(5,), keeps_one=True)], BUSY, 16, TARGET_S)
    assert (found.verdict, found.recommended) == ("stay", None)


def test_progress_is_found_among_the_lines_of_a_log() -> None:
    laid_out = json.dumps(progress(3), indent=2)
    text = f'INFO {{not JSON\n{json.dumps(progress(2))}\nINFO made progress: {laid_out}\n{{"other": 1}}\n{{"cut": '
    assert [each["batchId"] for each in find_progress(text)] == [2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batchId": "7"},
        {"runId": None},
        {"durationMs": [1]},
        {"durationMs": {"addBatch": "long"}},
        {"numInputRows": "many"},
        {"inputRowsPerSecond": float("nan")},
        {"stateOperators": [7]},
        {"stateOperators": [{"customMetrics": [1]}]},
        {"stateOperators": [{"commitTimeMs": {}}]},
        {"sources": ["kafka"]},
    ],
)
def test_what_spark_does_not_write_is_no_progress(wrong: dict[str, Any]) -> None:
    assert list(find_progress(json.dumps(progress(1)))) == [progress(1)]
    assert not list(find_progress(json.dumps(progress(1, **wrong))))


def test_first_batches_and_restores_do_not_count() -> None:
    restoring = progress(7)
    restoring["stateOperators"][0]["customMetrics"] = {"ckptRestores": 3}
    idle = progress(9, durationMs={"triggerExecution": 1})
    found = read_figures([progress(0, task_ms=99_000), *map(progress, range(1, 6)), restoring, idle])
    assert found is not None
    assert (found.batches, found.operators[0].task_ms, found.run_ms) == (5, 905.0, 400.0)
    assert read_figures([idle]) is None


def test_runs_of_one_batch_are_said_to_be_left_out() -> None:
    found = read_figures([progress(batch, run=f"run {batch}") for batch in range(9)])
    assert found is not None
    assert (found.batches, found.left_out) == (0, 9)
    told = judge([EVEN], found, 16, TARGET_S).reasons[0].text
    assert "that count: 0." in told
    assert "9 more do not count: the first batch of a run" in told


def test_batches_before_a_rescaling_do_not_count() -> None:
    before = [progress(batch, task_ms=99_000) for batch in range(20)]
    for each in before:
        for operator in each["stateOperators"]:
            operator["numShufflePartitions"] = 8
    found = read_figures([*before, *(progress(batch, run="later") for batch in range(20, 24))])
    assert found is not None
    assert (found.batches, found.left_out, found.operators[0].task_ms) == (3, 21, 905.0)


@pytest.mark.parametrize(
    ("took_ms", "sources", "keeps_up"),
    [
        (600, [], True),
        (5_900, [], None),  # without a pause
        (6_000, [], None),
        (6_000, [{"endOffset": {"topic": 7}, "latestOffset": {"topic": 900}}], False),
        (6_000, [{"endOffset": {"topic": 7}, "latestOffset": {"topic": 7}}], None),
        (6_000, [{"endOffset": {"logOffset": 7}, "latestOffset": None}], None),
    ],
)
def test_a_query_keeps_up_if_it_waits_and_is_behind_if_its_sources_have_more(
    took_ms: int,
    sources: list[dict[str, Any]],
    keeps_up: bool | None,  # noqa: FBT001
) -> None:
    more: dict[str, Any] = {"durationMs": {"addBatch": 400, "triggerExecution": took_ms}, "sources": sources}
    found = read_figures([progress(batch, **more) for batch in range(6)])
    assert found is not None
    assert found.keeps_up is keeps_up


def test_the_command_answers_with_its_reasons(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = written(quick_path / "query", 3)
    log = quick_path / "log"
    log.write_text("\n".join(json.dumps(progress(batch)) for batch in range(6)))
    assert main(["query", "advise", query.location, "--progress", str(log), "--cores", "8"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("More partitions would help: the query has 3 partitions, and 9 are recommended.")
    assert f"pyspark-ckpt checkpoint rescale {query.location} NEW_CHECKPOINT -n 9 --dry-run" in told
    assert main(["query", "advise", query.location, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"
    assert "do not suffice" in str(ckpt.monitoring.advise(query.location))


def test_progress_of_another_query_is_refused(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = written(quick_path / "query", 2)
    with pytest.raises(InvalidInputError, match="The progress is of query other"):
        ckpt.monitoring.advise(query.location, progress=[progress(1, query="other")])
    with pytest.raises(InvalidInputError, match="has a value that is not a query's progress"):
        ckpt.monitoring.advise(query.location, progress=[{}])
    log = quick_path / "log"
    log.write_text("nothing")
    for call, wrong in (
        (("--progress", str(log)), "has no progress of a query"),
        (("--progress", str(quick_path / "none")), "cannot be read"),
        (("--cores", "0"), "--cores must be at least 1"),
    ):
        assert main(["query", "advise", query.location, *call]) == 2
        assert wrong in capsys.readouterr().err
