"""Where the series go: a server, a registry, a meter."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typing_extensions import override

import pyspark_ckpt as ckpt
from pyspark_ckpt.metrics import prometheus, telemetry
from pyspark_ckpt.metrics.families import Family, all_families
from pyspark_ckpt.metrics.series import Series
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError, ProcessError
from tests.metrics.events import QUERY, TARGET_S, add, batch, operator
from tests.services.ports import find_free_port

FORECAST = "ckptRestoreForecastMs.partition_0_default"
SESSION: Any = object()
"""No session is needed to see what is missing."""


@pytest.fixture
def series() -> Series:
    """A query with one batch."""
    made = Series()
    made.start(QUERY, "run-1", "visits", TARGET_S)
    add(made, batch(operator(ckptUploadTimeMs=1500, **{FORECAST: 900, 'visits/odd "name"\n': 2})))
    return made


@pytest.fixture
def server(series: Series) -> Iterator[prometheus.ServerExport]:
    """The series on a free port."""
    export = prometheus.make_export(series, 0)
    assert isinstance(export, prometheus.ServerExport)
    yield export
    export.close()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - a server of this test
        return str(answer.read().decode())


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_has_every_series_with_its_kind_and_text(series: Series, server: prometheus.ServerExport) -> None:
    text = read(server.url)
    expected = {
        (family.series_name, frozenset(zip(family.labels, labels, strict=True))): value
        for family, labels, value in series.read()
    }
    assert values(text) == expected
    assert "# TYPE ckpt_upload_seconds_total counter" in text
    assert "# HELP ckpt_upload_seconds_total Time to upload the delta" in text
    assert "# TYPE ckpt_restore_forecast_seconds gauge" in text


def test_a_server_is_on_this_machine_alone_unless_it_is_told(series: Series, server: prometheus.ServerExport) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    port = int(re.findall(r":(\d+)/", server.url)[0])
    with pytest.raises(InvalidInputError, match=f"port {port}: .*in use"):
        prometheus.make_export(series, f"127.0.0.1:{port}")
    server.close()
    again = prometheus.make_export(series, port)
    again.close()
    with pytest.raises(OSError, match="refused"):
        read(server.url)


def test_a_process_that_is_forked_keeps_no_port_and_may_close_the_export(server: prometheus.ServerExport) -> None:
    ready, ended = list(os.pipe()), list(os.pipe())
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            server.close()
            os.write(ready[1], b"x")
            os.read(ended[0], 1)
        finally:
            os._exit(0)
    os.close(ready.pop())
    assert os.read(ready[0], 1) == b"x", "it has closed the export"
    assert "ckpt_query_running" in read(server.url)
    port = int(re.findall(r":(\d+)/", server.url)[0])
    server.close()
    prometheus.ServerExport(Series(), "127.0.0.1", port).close()
    os.write(ended[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for end in (*ready, *ended):
        os.close(end)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (9464, ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9000", ("0.0.0.0", 9000)),  # noqa: S104 - only read
        ("[::1]:9000", ("::1", 9000)),
        ("metrics.example:1", ("metrics.example", 1)),
    ],
)
def test_addresses_are_read(target: object, expected: tuple[str, int]) -> None:
    assert prometheus.read_address(target) == expected


@pytest.mark.parametrize("target", [True, -1, 65536, "", ":9000", "host:", "host", "host:9x", 9.5, object(), "९४"])
def test_what_is_no_address_is_refused(target: object) -> None:
    with pytest.raises(InvalidInputError, match="prometheus must be a port"):
        prometheus.read_address(target)


def test_a_host_that_does_not_exist_is_refused(series: Series) -> None:
    with pytest.raises(InvalidInputError, match=r"no-such-host\.invalid, port 0"):
        prometheus.make_export(series, "no-such-host.invalid:0")


def test_a_registry_has_the_series_until_the_export_is_closed(series: Series) -> None:
    registry = CollectorRegistry()
    export = prometheus.make_export(series, registry)
    assert registry.get_sample_value("ckpt_query_running", {"query": "visits", "query_id": QUERY}) == 1
    with pytest.raises(LifecycleError, match="already"):
        prometheus.make_export(Series(), registry)
    export.close()
    export.close()
    assert not generate_latest(registry)
    prometheus.make_export(series, registry)


def test_text_that_no_utf8_has_does_not_break_a_scrape(series: Series, server: prometheus.ServerExport) -> None:
    series.start("other", "run", "half \ud800", TARGET_S)
    assert 'query="half ?"' in read(server.url)


def points(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    found = [] if data is None else [each for scope in data.resource_metrics[0].scope_metrics for each in scope.metrics]
    return {each.name: each for each in found}


def test_a_meter_has_the_series_with_their_units(series: Series) -> None:
    reader = InMemoryMetricReader()
    export = telemetry.make_export(series, MeterProvider([reader]))
    found = points(reader)
    upload = found["ckpt.upload"]
    assert (upload.unit, upload.description) == ("s", "Time to upload the delta")
    assert upload.data.is_monotonic
    (point,) = upload.data.data_points
    labels = {"operator": "0", "operator_name": "keyed", "uid": "visits"}
    assert (dict(point.attributes), point.value) == ({"query": "visits", "query_id": QUERY, **labels}, 1.5)
    (forecast,) = found["ckpt.restore_forecast"].data.data_points
    assert (forecast.attributes["partition"], forecast.value) == ("0", 0.9)
    assert found["ckpt.state_memory"].unit == "By"
    assert {family.name for family, _, _ in series.read()} == {name.removeprefix("ckpt.") for name in found}
    export.close()


def test_a_collector_gives_prometheus_the_names_of_the_board() -> None:
    """The rules are those of https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics."""
    suffixes = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "": ""}
    made: set[str] = set()

    class Names(NoOpMeter):
        @override
        def create_observable_counter(
            self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
        ) -> Any:
            made.add(name.replace(".", "_") + suffixes[unit] + "_total")

        @override
        def create_observable_gauge(
            self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
        ) -> Any:
            made.add(name.replace(".", "_") + suffixes[unit])

    telemetry.make_export(Series(), Names(telemetry.SCOPE))
    assert made == {family.series_name for family in all_families()}


def test_a_meter_has_nothing_after_the_export_is_closed_and_takes_the_next_one(
    series: Series, caplog: pytest.LogCaptureFixture
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export = telemetry.make_export(series, provider)
    with pytest.raises(LifecycleError, match="already"):
        telemetry.make_export(Series(), provider)
    export.close()
    export.close()
    assert not any(each.data.data_points for each in points(reader).values())
    again = telemetry.make_export(series, provider)
    assert points(reader)["ckpt.batches"].data.data_points[0].value == 1
    again.close()
    assert not caplog.records


def test_what_is_no_meter_is_refused(series: Series) -> None:
    with pytest.raises(InvalidInputError, match="otel must be a MeterProvider"):
        telemetry.make_export(series, "http://collector")


def test_an_ended_query_is_gone_from_a_scrape(series: Series, server: prometheus.ServerExport) -> None:
    series.end(QUERY, "run-1", failed=True, error_class="X")
    now = {name for name, _ in values(read(server.url))}
    gauges = {name for name in now if _family(name).kind == "gauge"}
    assert gauges == {"ckpt_query_running", "ckpt_query_last_exception_timestamp_seconds"}


def _family(name: str) -> Family:
    return next(family for family in all_families() if family.series_name == name)


def test_what_is_no_session_is_refused_and_frees_the_port() -> None:
    port = find_free_port()
    with pytest.raises(InvalidInputError, match=r"needs a Spark session, got builtins.object"):
        ckpt.monitoring.export_metrics(SESSION, prometheus=port)
    prometheus.make_export(Series(), port).close()


@pytest.mark.parametrize(
    ("module", "target", "extra"),
    [("prometheus_client", {"prometheus": 0}, "prometheus"), ("opentelemetry", {"otel": object()}, "otel")],
)
def test_an_extra_that_is_missing_is_named(
    module: str, target: dict[str, Any], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ProcessError) as refused:
        ckpt.monitoring.export_metrics(SESSION, **target)
    assert f"pyspark-ckpt[{extra}]" in str(refused.value)
