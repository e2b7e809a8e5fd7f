"""The series as Prometheus reads them: a collector for a registry, and an HTTP server. Needs prometheus-client."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from pyspark_ckpt.metrics.families import Family, all_families
from pyspark_ckpt.metrics.series import Series
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError

MAX_PORT = 65535
LOCAL = "127.0.0.1"


class Export(Protocol):
    """Where series go, until it is closed."""

    def close(self) -> None:
        """End it. Repeating the call does no harm."""


class SeriesCollector(Collector):
    """Gives a registry the series."""

    def __init__(self, series: Series) -> None:
        """Read ``series`` at each scrape."""
        self._series = series

    def describe(self) -> Iterable[Metric]:
        """Return all families, without series: the registry refuses to have them twice."""
        return [_metric(family) for family in all_families()]

    @override
    def collect(self) -> Iterable[Metric]:
        metrics = {family: _metric(family) for family in all_families()}
        for family, labels, value in self._series.read():
            metrics[family].add_metric(labels, value)
        return [metric for metric in metrics.values() if metric.samples]


def _metric(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return made(family.full_name, family.text, labels=family.labels)


class RegistryExport:
    """A registry has the series, until this is closed."""

    def __init__(self, series: Series, registry: CollectorRegistry) -> None:
        """Register. Raises LifecycleError if the registry has such series already."""
        self._registry: CollectorRegistry | None = registry
        self._collector = SeriesCollector(series)
        try:
            registry.register(self._collector)
        except ValueError as problem:
            raise LifecycleError(
                "The registry already has the metrics of pyspark-ckpt.",
                hint="Call follow(session) of the handle that export_metrics() returned, or close it.",
            ) from problem

    def close(self) -> None:
        """Take the series out of the registry."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.unregister(self._collector)


class ServerExport:
    """An HTTP server has the series, until this is closed."""

    def __init__(self, series: Series, address: str, port: int) -> None:
        """Begin to serve. Raises InvalidInputError (the address cannot be used, as when the port is in use)."""
        registry = CollectorRegistry()
        registry.register(SeriesCollector(series))
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as problem:
            raise InvalidInputError(
                f"Metrics cannot be served on {address}, port {port}: {problem}.",
                hint="Give another port, or 0 for any free one. Several sessions of a program share one port: call "
                "follow(session) of the handle that ckpt.monitoring.export_metrics returned first.",
            ) from problem
        self._is_open = True
        _servers.add(self)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop the server, and free its port."""
        if self._is_open:
            self._is_open = False
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def forget(self) -> None:
        """Let go of the port in a forked process: it has no thread that would serve."""
        self._is_open = False
        self._server.socket.close()


_servers: WeakSet[ServerExport] = WeakSet()


def _forget_servers() -> None:
    for server in _servers:
        server.forget()


os.register_at_fork(after_in_child=_forget_servers)


def make_export(series: Series, target: object) -> RegistryExport | ServerExport:
    """Export to a registry, or serve on a port. Raises InvalidInputError, LifecycleError."""
    if isinstance(target, CollectorRegistry):
        return RegistryExport(series, target)
    address, port = read_address(target)
    return ServerExport(series, address, port)


def read_address(target: object) -> tuple[str, int]:
    """Return host and port of ``9464``, ``"9464"`` or ``"0.0.0.0:9464"``. Raises InvalidInputError."""
    host, _, port = str(target).rpartition(":")
    is_number = isinstance(target, (int, str)) and not isinstance(target, bool) and port.isascii() and port.isdecimal()
    if not is_number or int(port) > MAX_PORT or (":" in str(target) and not host):
        raise InvalidInputError(
            f"prometheus must be a port, 'host:port' or a CollectorRegistry of prometheus-client, got {target!r}.",
            hint="For example prometheus=9464, or prometheus='0.0.0.0:9464' to be reached from other machines.",
        )
    return host.removeprefix("[").removesuffix("]") or LOCAL, int(port)
