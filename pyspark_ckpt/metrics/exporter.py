"""``export_metrics()``: export the metrics of a session's queries."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pyspark_ckpt.metrics.series import Series
from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.pyspark_releases import require_own_listeners
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.log import LOGGER

_log = logging.getLogger(f"{LOGGER}.monitoring")

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession

    from pyspark_ckpt.metrics.listener import SeriesListener
    from pyspark_ckpt.metrics.prometheus import Export


def export_metrics(
    spark: SparkSession,
    *,
    prometheus: int | str | CollectorRegistry | None = None,
    otel: MeterProvider | Meter | None = None,
) -> MetricsExport:
    """Export metrics of all streaming queries of ``spark``, from now on until the handle is closed.

    ``prometheus``: a port of 127.0.0.1 on which an HTTP server is started (0: any free one), ``"host:port"``, or a
    registry of prometheus-client. ``otel``: a MeterProvider or a Meter. Give one of them, or both. Every query of the
    session is exported, whatever state store it has; one that runs already, from its next batch on. Sessions made by
    ``newSession()`` have queries of their own: call ``follow`` of the handle for each of them.

    A batch is counted once it has finished. Counters go on when a query is restarted, and stay for 15 minutes after its
    end, so that they can be read; sizes, lags and forecasts disappear at once. A problem of the export never ends a
    query: it is logged once and counted in ``ckpt_exporter_failures_total``.

    Raises InvalidInputError (no session; no target or a wrong one; a port that cannot be used; a Spark Connect client
    before 4.0), LifecycleError (the session was stopped; the registry or the meter has these metrics already),
    ProcessError (an extra is missing).
    """
    if prometheus is None and otel is None:
        raise InvalidInputError(
            "export_metrics() was given no target.", hint="Give prometheus=9464, or otel=<MeterProvider>."
        )
    require_extra("pyspark", "export_metrics()")
    require_own_listeners(spark, "export_metrics()")
    handle = MetricsExport()
    try:
        if prometheus is not None:
            require_extra("prometheus_client", "export_metrics(prometheus=...)")
            from pyspark_ckpt.metrics import prometheus as of_prometheus  # noqa: PLC0415 - of an extra

            handle.add_export(of_prometheus.make_export(handle.series, prometheus))
        if otel is not None:
            require_extra("opentelemetry", "export_metrics(otel=...)")
            from pyspark_ckpt.metrics import telemetry  # noqa: PLC0415 - of an extra

            handle.add_export(telemetry.make_export(handle.series, otel))
        handle.follow(spark)
    except BaseException:
        handle.close()
        raise
    return handle


class MetricsExport(Closeable):
    """A running export: see ``export_metrics``. It is a context manager, which closes it."""

    def __init__(self) -> None:
        """Export nothing, to nowhere."""
        self.series = Series(before_read=self._end_stopped)
        self._exports: list[Export] = []
        self._listeners: list[tuple[SparkSession, SeriesListener]] = []
        self._is_closed = False

    @property
    def url(self) -> str | None:
        """Where Prometheus finds the metrics; None if no server was started."""
        return next((each.url for each in self._exports if hasattr(each, "url")), None)

    def add_export(self, export: Export) -> None:
        """Close ``export`` with this handle."""
        self._exports.append(export)

    def follow(self, spark: SparkSession) -> None:
        """Export the queries of one more session, too. A session that is already followed is not counted twice.

        Raises LifecycleError (the handle is closed, or the session was stopped), InvalidInputError (no session; a Spark
        Connect client before 4.0).
        """
        if self._is_closed:
            raise LifecycleError("The export of metrics is closed.", hint="Call ckpt.monitoring.export_metrics again.")
        require_own_listeners(spark, "export_metrics()")
        if not hasattr(type(spark), "streams"):
            raise InvalidInputError(
                f"export_metrics() needs a Spark session, got {type(spark).__module__}.{type(spark).__name__}.",
                hint="Give the session that builder.getOrCreate() returns.",
            )
        if _is_stopped(spark):
            raise LifecycleError("The Spark session was stopped.", hint="Create another one, and give that.")
        if any(_are_same(session, spark) for session, _ in self._listeners):
            return
        from pyspark_ckpt.metrics.listener import SeriesListener  # noqa: PLC0415 - needs PySpark

        listener = SeriesListener(self.series, lambda key: spark.conf.get(key, None))
        if _is_of_client(spark):
            # PySpark's thread for listeners would keep the program from ending. What atexit calls comes after threads.
            threading._register_atexit(self.close)  # type: ignore[attr-defined]  # noqa: SLF001
        spark.streams.addListener(listener)
        self._listeners.append((spark, listener))

    def _end_stopped(self) -> None:
        """End the queries of sessions that were stopped."""
        for spark, listener in tuple(self._listeners):
            if _is_stopped(spark):
                listener.end_runs()

    @override
    def close(self) -> None:
        """End the export, free the port, and leave the session as it was. Repeating the call does no harm."""
        self._is_closed = True
        while self._exports:
            self._exports.pop().close()
        while self._listeners:
            spark, listener = self._listeners.pop()
            if _is_stopped(spark):
                continue
            try:
                spark.streams.removeListener(listener)
            except Exception as problem:  # noqa: BLE001 - of py4j, or of gRPC
                _log.warning(
                    "The metrics listener could not be removed from its session, which does not answer: %s", problem
                )


def _is_of_client(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _are_same(one: Any, other: Any) -> bool:  # noqa: ANN401 - sessions of either kind
    """Whether two Python objects are one session. PySpark sometimes makes a new object for a session."""
    if one is other:
        return True
    if _is_of_client(one) or _is_of_client(other):
        return _is_of_client(one) and _is_of_client(other) and bool(one.session_id == other.session_id)
    return not _is_stopped(one) and bool(one._jsparkSession.equals(other._jsparkSession))  # noqa: SLF001


def _is_stopped(spark: Any) -> bool:  # noqa: ANN401 - a session of either kind
    """Whether a session was stopped, so that its listeners can no longer be removed."""
    return bool(spark.is_stopped if _is_of_client(spark) else spark.sparkContext._jsc is None)  # noqa: SLF001
