"""Metrics of real queries, as Prometheus and OpenTelemetry get them."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.operators.keyed import EVENTS
from integration.operators.providers import OURS
from integration.operators.sources import Source
from pyspark_ckpt.metrics.families import own_families
from pyspark_ckpt.pyspark_releases import find_release
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from tests.metrics.test_board_and_alerts import ALERTS, QUERIES, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_PACKET = 8192
"""Bytes that py4j writes at once."""

_FOLDERS = {"operator": "0", "operator_name": "keyed", "uid": "visits"}


class Visits(ckpt.KeyedProcessor):
    """Counts rows in state, and in a counter whose name no metric of Prometheus may have."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    seen = ckpt.MetricCounter("seen: rows (all)")

    def process(self, ctx: Any, key: Any, rows: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401, ARG002
        self.seen.add(len(rows))
        self.rows.update(self.rows.value() + len(rows))
        yield key.user, self.rows.value()


def _visits(rows: DataFrame) -> DataFrame:
    keyed = ckpt.keyed(rows, by="user", uid="visits")
    return keyed.process(Visits(), output="user int, rows bigint", mode="update")


def _collect(batch: DataFrame, _batch_id: int) -> None:
    batch.collect()


def _start(frame: DataFrame, folder: Path, name: str = "", mode: str = "update") -> StreamingQuery:
    writer = frame.writeStream.outputMode(mode).foreachBatch(_collect)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    return (writer.queryName(name) if name else writer).start()


def _play(session: SparkSession, folder: Path, make: Callable[[DataFrame], DataFrame], name: str = "") -> Any:  # noqa: ANN401
    """Run a query over all events, and return its id."""
    if not (folder / "input").exists():
        EVENTS.write(folder / "input", 0, len(EVENTS.batches))
    query = _start(make(EVENTS.stream(session, folder / "input")), folder, name)
    query.awaitTermination()
    return str(query.id)


def _await(read: Callable[[], object]) -> None:
    """Events come after what they are about."""
    for _ in range(200):
        if read():
            return
        time.sleep(0.05)
    raise AssertionError("no such event in 10 s")


def _ended(registry: CollectorRegistry, query_id: str) -> bool:
    return any(
        sample.name == "ckpt_query_running" and sample.labels["query_id"] == query_id and sample.value == 0
        for metric in registry.collect()
        for sample in metric.samples
    )


def _is_live(name: str) -> bool:
    """Whether only operators in real-time mode have a metric."""
    return name.startswith("ckpt_live_")


def test_every_metric_of_a_query_arrives_with_its_name_and_uid(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    session = OURS.session(spark)
    with ckpt.monitoring.export_metrics(session, prometheus=registry):
        query_id = _play(session, tmp_path, _visits, "site")
        _await(lambda: _ended(registry, query_id))
        labels = {"query": "site", "query_id": query_id, "operator": "0", "operator_name": "keyed", "uid": "visits"}
        rows = sum(map(len, EVENTS.batches))

        def value(name: str, **more: str) -> float | None:
            return registry.get_sample_value(name, {**labels, **more})

        counters = [each.series_name for each in own_families().values() if each.kind == "counter"]
        assert [name for name in counters if value(name) is None] == [each for each in counters if _is_live(each)]
        assert value("ckpt_user_counter_total", counter="seen: rows (all)") == rows
        assert value("ckpt_written_rows_total") == value("ckpt_state_rows_updated_total") > 0  # type: ignore[operator]
        assert value("ckpt_upload_seconds_total") > 0  # type: ignore[operator]
        of_query = {"query": "site", "query_id": query_id}
        assert registry.get_sample_value("ckpt_batches_total", of_query) == len(EVENTS.batches)
        assert registry.get_sample_value("ckpt_input_rows_total", of_query) == rows
        assert registry.get_sample_value("ckpt_query_ends_total", of_query) == 1
        assert value("ckpt_state_rows") is None, "the query has ended"
        assert registry.get_sample_value("ckpt_exporter_failures_total") == 0
    assert list(registry.collect()) == []


def test_gauges_are_there_while_a_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    session = OURS.session(spark, **{"spark.sql.streaming.stateStore.ckpt.restoreTarget": "90s"})
    EVENTS.write(tmp_path / "input", 0, 2)
    frame = _visits(EVENTS.stream(session, tmp_path / "input"))
    with ckpt.monitoring.export_metrics(session, prometheus=registry):
        writer = frame.writeStream.outputMode("update").foreachBatch(_collect)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
            labels = {"query": str(query.id), "query_id": str(query.id)}
            _await(lambda: registry.get_sample_value("ckpt_last_batch_id", labels) == 1)
            assert registry.get_sample_value("ckpt_restore_target_seconds", labels) == 90
            assert registry.get_sample_value("ckpt_state_partitions", {**labels, **_FOLDERS}) == 2
            users = {event[1] for batch in EVENTS.batches[:2] for event in batch}
            assert registry.get_sample_value("ckpt_state_rows", {**labels, **_FOLDERS}) == len(users)
            shown = {sample.name for metric in registry.collect() for sample in metric.samples}
            named = names_in(ALERTS.read_text("utf-8")).union(*(names_in(expression) for _, expression in QUERIES))
            absent = {"ckpt_query_last_exception_timestamp_seconds", "ckpt_watermark_timestamp_seconds"}
            if find_release() < "4.1":
                absent.add("ckpt_restore_forecast_seconds")
            assert named - shown == absent.union(filter(_is_live, named))
        finally:
            query.stop()


def test_a_query_that_fails_counts_and_one_that_is_restarted_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    session = OURS.session(spark)
    with ckpt.monitoring.export_metrics(session, prometheus=registry):

        def make(rows: DataFrame) -> DataFrame:
            return _visits(rows.where(f.expr("if(id >= 0, raise_error('no'), true)")))

        with pytest.raises(StreamingQueryException):
            _play(session, tmp_path, make, "site")
        failed = [
            sample.labels
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == "ckpt_query_exceptions_total"
        ]
        labels = failed[0]
        _await(lambda: registry.get_sample_value("ckpt_query_exceptions_total", labels) == 1)
        assert _play(session, tmp_path, _visits, "site") == labels["query_id"]
        _await(lambda: registry.get_sample_value("ckpt_query_ends_total", labels) == 1)
        assert registry.get_sample_value("ckpt_query_starts_total", labels) == 2
        assert registry.get_sample_value("ckpt_batches_total", labels) == len(EVENTS.batches)


def test_operators_have_the_numbers_of_their_folders(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    session = OURS.session(spark)
    EVENTS.write(tmp_path / "input", 0, 2)

    def stream() -> DataFrame:
        return EVENTS.stream(session, tmp_path / "input")

    first = stream().dropDuplicates(["id"]).select("user", f.lit(1).cast("bigint").alias("rows"))
    frame = _visits(stream()).union(first)
    with ckpt.monitoring.export_metrics(session, prometheus=registry):
        query = _start(frame, tmp_path)
        query.awaitTermination()
        _await(lambda: _ended(registry, str(query.id)))
        shown = {
            sample.labels["operator"]: sample.labels["operator_name"]
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == "ckpt_state_commits_seconds_total"
        }
    for number, name in shown.items():
        metadata = (tmp_path / "checkpoint/state" / number / "_metadata/metadata").read_text().splitlines()[-1]
        stored = json.loads(metadata)["operatorInfo"]["operatorName"]
        assert stored == {"keyed": "applyInPandasWithState"}.get(name, name)
    assert sorted(shown.values()) == ["dedupe", "keyed"]


def test_a_problem_of_the_export_ends_no_query_and_is_said_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark_ckpt.metrics.series import Series

    def fail(_series: Series, *_what: object) -> None:
        raise RuntimeError("made up")

    registry = CollectorRegistry()
    session = OURS.session(spark)
    with ckpt.monitoring.export_metrics(session, prometheus=registry), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(Series, "add", fail)
        query_id = _play(session, tmp_path, _visits)
        _await(lambda: _ended(registry, query_id))
        failures = registry.get_sample_value("ckpt_exporter_failures_total")
    assert failures == len(EVENTS.batches)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "The query goes on" in caplog.text
    assert "made up" in caplog.text


def test_several_sessions_have_one_export_and_one_session_may_have_several(spark: SparkSession, tmp_path: Path) -> None:
    first, second = OURS.session(spark), OURS.session(spark)
    registry, other = CollectorRegistry(), CollectorRegistry()
    with (
        ckpt.monitoring.export_metrics(first, prometheus=registry) as handle,
        ckpt.monitoring.export_metrics(first, prometheus=other),
    ):
        handle.follow(second)
        handle.follow(second)
        with pytest.raises(LifecycleError, match="already"):
            ckpt.monitoring.export_metrics(second, prometheus=registry)
        one, two = _play(first, tmp_path / "1", _visits), _play(second, tmp_path / "2", _visits)
        _await(lambda: _ended(registry, one) and _ended(registry, two) and _ended(other, one))
        for each in (registry, other):
            batches = each.get_sample_value("ckpt_batches_total", {"query": one, "query_id": one})
            assert batches == len(EVENTS.batches)
        assert other.get_sample_value("ckpt_batches_total", {"query": two, "query_id": two}) is None
    with pytest.raises(LifecycleError, match="closed"):
        handle.follow(first)
    handle.close()


def test_another_object_of_a_session_that_is_followed_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    session = OURS.session(spark)
    with ckpt.monitoring.export_metrics(session, prometheus=registry) as handle:
        handle.follow(type(session)(session.sparkContext, session._jsparkSession))
        query_id = _play(session, tmp_path, _visits)
        _await(lambda: _ended(registry, query_id))
        labels = {"query": query_id, "query_id": query_id}
        assert registry.get_sample_value("ckpt_batches_total", labels) == len(EVENTS.batches)
        assert registry.get_sample_value("ckpt_query_starts_total", labels) == 1


def test_a_progress_that_is_long_arrives_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    operators = 8
    registry = CollectorRegistry()
    session = OURS.session(spark)
    EVENTS.write(tmp_path / "input", 0, 2)
    frame = EVENTS.stream(session, tmp_path / "input")
    for number in range(operators):
        frame = frame.withColumn("id", f.col("id") + number).dropDuplicates(["id", "user"])
    with ckpt.monitoring.export_metrics(session, prometheus=registry):
        query = _start(frame, tmp_path, mode="append")
        query.awaitTermination()
        _await(lambda: _ended(registry, str(query.id)))
        progress: Any = query.recentProgress
        assert len(str(progress[-1]["stateOperators"])) > MAX_PACKET
        for number in range(operators):
            labels = {"query": str(query.id), "query_id": str(query.id), "operator": str(number), "uid": ""}
            exported = registry.get_sample_value("ckpt_state_rows_updated_total", {**labels, "operator_name": "dedupe"})
            assert exported == sum(each["stateOperators"][number]["numRowsUpdated"] for each in progress) > 0
        assert registry.get_sample_value("ckpt_exporter_failures_total") == 0


def test_a_call_that_fails_leaves_nothing_behind(spark: SparkSession) -> None:
    session = OURS.session(spark)
    with pytest.raises(InvalidInputError, match="no target"):
        ckpt.monitoring.export_metrics(session)
    with ckpt.monitoring.export_metrics(session, prometheus=0) as handle:
        address = (handle.url or "").removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(InvalidInputError, match="cannot be served"):
            ckpt.monitoring.export_metrics(session, prometheus=address)
        registry = CollectorRegistry()
        with pytest.raises(InvalidInputError, match="otel must be a MeterProvider"):
            ckpt.monitoring.export_metrics(session, prometheus=registry, otel="collector")  # type: ignore[arg-type]
        assert list(registry.collect()) == []
    ckpt.monitoring.export_metrics(session, prometheus=address).close()


def test_a_query_without_state_is_exported(spark: SparkSession, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    session = OURS.session(spark)
    source = Source("id int", (((1,), (2,)),))
    source.write(tmp_path / "input", 0, 1)
    with ckpt.monitoring.export_metrics(session, prometheus=registry):
        query = _start(source.stream(session, tmp_path / "input"), tmp_path, mode="append")
        query.awaitTermination()
        _await(lambda: _ended(registry, str(query.id)))
    with ckpt.monitoring.export_metrics(session, prometheus=registry):
        assert registry.get_sample_value("ckpt_exporter_failures_total") == 0
