"""What events of queries do to the series."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from typing import Any

import pytest

from pyspark_ckpt.metrics import families
from pyspark_ckpt.metrics.progress import read_event, read_name, read_packed, read_progress
from pyspark_ckpt.metrics.series import KEPT_S, Series
from tests.metrics.events import OTHER, QUERY, TARGET_S, add, batch, operator, shown

FORECAST = "ckptRestoreForecastMs.partition_"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def started(clock: Clock | None = None, name: str | None = "visits") -> Series:
    series = Series(clock or Clock())
    series.start(QUERY, "run-1", name, TARGET_S)
    return series


def test_what_a_batch_did_adds_up_and_what_there_is_now_is_replaced() -> None:
    series = started()
    add(series, batch(operator(rows=7, ckptUploadTimeMs=1500, ckptTableBytes=10)))
    add(series, batch(operator(rows=9, ckptUploadTimeMs=250, ckptTableBytes=4)))
    assert shown(series, "ckpt_upload_seconds_total", "uid") == {("visits",): 1.75}
    assert shown(series, "ckpt_table_bytes", "uid") == {("visits",): 4}
    assert shown(series, "ckpt_state_rows") == {("visits", QUERY, "0", "keyed", "visits"): 9}
    assert shown(series, "ckpt_state_rows_updated_total", "operator_name") == {("keyed",): 10}
    assert shown(series, "ckpt_state_commits_seconds_total", "uid") == {("visits",): 0.5}
    assert shown(series, "ckpt_batches_total") == {("visits", QUERY): 2}
    assert shown(series, "ckpt_batch_duration_seconds_total") == {("visits", QUERY): 1.0}
    assert shown(series, "ckpt_batch_phase_duration_seconds_total", "phase") == {("addBatch",): 0.8}
    assert shown(series, "ckpt_input_rows_total", "query") == {("visits",): 40}
    assert shown(series, "ckpt_watermark_timestamp_seconds", "query") == {("visits",): 1767225600}
    assert shown(series, "ckpt_restore_target_seconds", "query") == {("visits",): TARGET_S}


def test_forecasts_are_those_of_the_stores_that_the_last_batch_shows() -> None:
    series = started()
    add(series, batch(operator(**{FORECAST + "0_default": 900, FORECAST + "1_left_keys": -1})))
    assert shown(series, "ckpt_restore_forecast_seconds", "partition", "store") == {("0", "default"): 0.9}
    add(series, batch(operator(**{FORECAST + "1_left_keys": 70})))
    assert shown(series, "ckpt_restore_forecast_seconds", "partition", "store") == {("1", "left_keys"): 0.07}


def test_the_counts_of_latencies_are_those_of_a_histogram_of_prometheus() -> None:
    series, name = started(), "ckpt_live_rows_total"
    some = dict.fromkeys(families.latency_limits_ms(), 0) | {"ckptLiveRows.up_to_2_ms": 3, "ckptLiveRows.later": 1}
    add(series, batch(operator(**some, ckptLiveGroups=5, ckptLiveTickDelayMs=250)))
    add(series, batch(operator(**some)))
    counts = shown(series, name, "uid", "le")
    assert [counts["visits", le] for le in ("0.001", "0.002", "0.003", "10", "+Inf")] == [0, 6, 6, 6, 8]
    assert len(counts) == len(some)
    assert shown(series, "ckpt_live_groups_total", "uid") == {("visits",): 5}
    assert shown(series, "ckpt_live_tick_delay_seconds_total", "uid") == {("visits",): 0.25}
    assert shown(series, "ckpt_spark_metric") == {}


def test_two_queries_may_have_one_name_and_their_operators_one_uid() -> None:
    series = started()
    series.start(OTHER, "run-9", "visits", TARGET_S)
    add(series, batch(operator(rows=1)))
    add(series, batch(operator(rows=2), query=OTHER, run="run-9"))
    assert shown(series, "ckpt_state_rows", "query", "query_id", "uid") == {
        ("visits", QUERY, "visits"): 1,
        ("visits", OTHER, "visits"): 2,
    }


def test_a_query_without_a_name_is_named_by_its_id() -> None:
    series = started(name=None)
    assert shown(series, "ckpt_query_running") == {(QUERY, QUERY): 1}


def test_operators_of_one_kind_and_those_of_spark_are_told_apart_by_number() -> None:
    series = started()
    add(
        series,
        batch(
            operator("stateStoreSave", rows=3),
            operator("stateStoreSave", rows=4),
            operator("with_states(uid='w')", rows=5),
        ),
    )
    assert shown(series, "ckpt_state_rows", "operator", "operator_name", "uid") == {
        ("0", "stateStoreSave", ""): 3,
        ("1", "stateStoreSave", ""): 4,
        ("2", "with_states", "w"): 5,
    }


@pytest.mark.parametrize("uid", ["visits", 'it\'s "odd"\n\\', "ключ"])
def test_a_uid_is_read_as_the_program_gave_it(uid: str) -> None:
    assert read_name(f"keyed(uid={uid!r})") == ("keyed", uid)


def test_a_counter_of_a_program_may_have_any_name_and_is_shown_for_its_operator_alone() -> None:
    series = started()
    counters = {'visits/bad rows, %/"x"\n': 2, "other/bad": 0, "visits/": 3}
    add(series, batch(operator(**counters), operator("keyed(uid='other')", **{"other/bad": 4, "visits/": 0})))
    assert shown(series, "ckpt_user_counter_total", "uid", "counter") == {
        ("visits", 'bad rows, %/"x"\n'): 2,
        ("visits", ""): 3,
        ("other", "bad"): 4,
    }


def test_what_a_counter_takes_away_is_a_series_of_its_own() -> None:
    series = started()
    for counted in (5, -3, 0, 2):
        add(series, batch(operator(**{"visits/open": counted})))
    assert shown(series, "ckpt_user_counter_total", "counter") == {("open",): 7}
    assert shown(series, "ckpt_user_counter_subtractions_total", "counter") == {("open",): 3}


def test_a_clock_that_is_set_back_lets_no_counter_go_down() -> None:
    series = started()
    for took_ms in (500, -60_000, 700):
        add(series, batch(operator(ckptUploadTimeMs=took_ms), durationMs={"triggerExecution": took_ms}))
    assert shown(series, "ckpt_batch_duration_seconds_total", "query") == {("visits",): 1.2}
    assert shown(series, "ckpt_upload_seconds_total", "uid") == {("visits",): 1.2}


def test_metrics_of_other_providers_are_shown_under_their_own_names() -> None:
    custom = {
        "rocksdbCommitFlushLatency": 7,
        "SnapshotLastUploaded.partition_3_default": -1,
        "numDroppedDuplicateRows": 0,
    }
    series = started()
    add(series, batch(operator("dedupe", **custom)))
    assert shown(series, "ckpt_spark_metric", "metric", "partition", "store") == {
        ("rocksdbCommitFlushLatency", "", ""): 7,
        ("SnapshotLastUploaded", "3", "default"): -1,
        ("numDroppedDuplicateRows", "", ""): 0,
    }


def test_counters_go_on_when_a_query_is_restarted() -> None:
    series = started()
    add(series, batch(operator(ckptRestores=2)))
    series.end(QUERY, "run-1", failed=True, error_class="USER_RAISED_EXCEPTION")
    assert shown(series, "ckpt_query_last_exception_timestamp_seconds", "error_class") == {
        ("USER_RAISED_EXCEPTION",): 1000
    }
    series.start(QUERY, "run-2", "renamed", 5.0)
    add(series, batch(operator(ckptRestores=1), run="run-2"))
    assert shown(series, "ckpt_restores_total", "query") == {("renamed",): 3}
    assert shown(series, "ckpt_query_starts_total", "query") == {("renamed",): 2}
    assert shown(series, "ckpt_query_exceptions_total", "query") == {("renamed",): 1}
    assert shown(series, "ckpt_restore_target_seconds", "query") == {("renamed",): 5.0}
    assert not shown(series, "ckpt_query_last_exception_timestamp_seconds")


def test_an_end_that_is_told_after_the_next_start_ends_nothing() -> None:
    series = started()
    series.start(QUERY, "run-2", "visits", TARGET_S)
    add(series, batch(operator(), run="run-2"))
    series.end(QUERY, "run-1", failed=False)
    assert shown(series, "ckpt_query_running", "query") == {("visits",): 1}
    assert shown(series, "ckpt_state_rows", "uid") == {("visits",): 7}
    assert shown(series, "ckpt_query_ends_total", "query") == {("visits",): 1}


def test_an_ended_query_loses_its_gauges_at_once_and_its_counters_later() -> None:
    clock = Clock()
    series = started(clock)
    add(series, batch(operator(ckptRestores=2)))
    series.end(QUERY, "run-1", failed=False)
    assert shown(series, "ckpt_query_running", "query") == {("visits",): 0}
    assert not shown(series, "ckpt_state_rows")
    assert not shown(series, "ckpt_last_batch_id")
    assert shown(series, "ckpt_restores_total", "uid") == {("visits",): 2}
    clock.now += KEPT_S + 1
    assert {family.series_name for family, _, _ in series.read()} == {
        "ckpt_exporter_duration_seconds_total",
        "ckpt_exporter_failures_total",
    }


def test_a_query_that_ran_before_is_known_from_its_first_batch_on() -> None:
    series = Series(Clock())
    add(series, batch(operator(), name="early"))
    assert shown(series, "ckpt_query_running", "query") == {("early",): 1}
    assert shown(series, "ckpt_query_exceptions_total", "query") == {("early",): 0}
    assert shown(series, "ckpt_restore_target_seconds", "query") == {("early",): TARGET_S}
    assert not shown(series, "ckpt_query_starts_total")


def test_a_progress_is_read_in_each_form_in_which_the_jvm_tells_of_it() -> None:
    text = batch(operator("keyed(uid='ключ')"))
    packed = b64encode(gzip.compress(text.encode())).decode()
    assert read_packed(packed) == read_packed(text) == read_event(f'{{"progress":{text}}}') == read_progress(text)


@pytest.mark.parametrize(
    ("shown_at", "seconds"),
    [
        ("2026-01-01T00:00:00.000Z", 1767225600),
        ("2026-01-01T00:00:00.250Z", 1767225600.25),
        ("2000-02-29T12:00:00.000Z", 951825600),
        ("+57971-02-25T00:00:00.000Z", 1767225600000),  # milliseconds that a program took for seconds
    ],
)
def test_a_watermark_of_any_year_is_shown(shown_at: str, seconds: float) -> None:
    series = started()
    add(series, batch(eventTime={"watermark": shown_at}))
    assert shown(series, "ckpt_watermark_timestamp_seconds", "query") == {("visits",): seconds}


def test_a_query_without_state_has_batches() -> None:
    series = started()
    add(series, batch(eventTime={}))
    assert shown(series, "ckpt_batches_total", "query") == {("visits",): 1}
    assert not shown(series, "ckpt_state_rows")
    assert not shown(series, "ckpt_watermark_timestamp_seconds")


def test_the_largest_numbers_add_up_exactly() -> None:
    series = started()
    for _ in range(3):
        add(series, batch(operator(ckptWrittenRows=2**63 - 1)))
    assert shown(series, "ckpt_written_rows_total", "uid") == {("visits",): 3 * (2**63 - 1)}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "7", None, True])
def test_a_batch_with_a_value_that_is_no_finite_number_changes_nothing(wrong: object) -> None:
    series = started()
    add(series, batch(operator(ckptRestores=2)))
    before = series.read()
    progress = json.loads(batch(operator()))
    progress["stateOperators"][0]["customMetrics"] = {"ckptRestores": wrong}
    read = progress | {"durationMs": {}}
    with pytest.raises(ValueError, match="ckpt_restores"):
        series.add(_as_progress(read), TARGET_S)
    assert series.read() == before


def _as_progress(read: dict[str, Any]) -> Any:  # noqa: ANN401
    from pyspark_ckpt.metrics.progress import read_progress

    whole = read_progress(batch())
    whole.state_operators.extend(read["stateOperators"])
    return whole


def test_names_follow_the_rules_of_prometheus() -> None:
    names = [family.series_name for family in families.all_families()]
    assert len(names) == len(set(names))
    for family in families.all_families():
        assert family.series_name.endswith("_total") == (family.kind == "counter")
        assert "ms" not in family.name.split("_")
        assert family.series_name.removesuffix("_total").endswith(family.unit)
