"""The listener that tells the series of a session's queries. This module needs PySpark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener
from typing_extensions import override

from pyspark_ckpt.monitoring.progress import read_progress
from pyspark_ckpt.monitoring.series import Series
from pyspark_ckpt.state_store.log import LOGGER

_log = logging.getLogger(f"{LOGGER}.monitoring")


class SeriesListener(StreamingQueryListener):
    """Tells ``series`` of each event. It never raises: a problem is logged once, and counted."""

    def __init__(self, series: Series) -> None:
        """Begin to listen when a session is given this listener."""
        self._series = series
        self._has_told = False

    @override
    def onQueryStarted(self, event: Any) -> None:
        self._work(lambda: self._series.start(str(event.id), str(event.runId), event.name))

    @override
    def onQueryProgress(self, event: Any) -> None:
        self.add_progress(event.progress.json)

    @override
    def onQueryIdle(self, event: Any) -> None:
        """An idle query has no news."""

    @override
    def onQueryTerminated(self, event: Any) -> None:
        self._work(
            lambda: self._series.end(
                str(event.id),
                str(event.runId),
                failed=event.exception is not None,
                error_class=event.errorClassOnException or "",
            )
        )

    def add_progress(self, progress: str | Callable[[], str]) -> None:
        """Tell of the progress of a batch, given as JSON."""
        self._work(lambda: self._series.add(read_progress(progress if isinstance(progress, str) else progress())))

    def _work(self, work: Callable[[], None]) -> None:
        started, failed = time.perf_counter_ns(), False
        try:
            work()
        except Exception:  # whatever it is, the query goes on
            failed = True
            if not self._has_told:
                self._has_told = True
                _log.exception(
                    "Metrics of a query could not be exported. The query goes on; later problems are only counted, "
                    "in ckpt_exporter_failures_total."
                )
        self._series.note_work(time.perf_counter_ns() - started, failed=failed)

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - an object of the JVM
        """The listener as the JVM calls it. PySpark's own asks the JVM for each number of a progress by itself."""
        from pyspark import SparkContext  # noqa: PLC0415 - a Spark Connect client has none

        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_JavaSide(self))
        return self._jlistenerobj


class _JavaSide:
    """The listener as py4j calls it."""

    def __init__(self, listener: SeriesListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802, ANN401, D102
        from pyspark.sql.streaming.listener import QueryStartedEvent

        self._listener.onQueryStarted(QueryStartedEvent.fromJObject(event))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802, ANN401, D102
        self._listener.add_progress(lambda: event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802, ANN401, D102
        """See SeriesListener."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ANN401, D102
        from pyspark.sql.streaming.listener import QueryTerminatedEvent

        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        """What py4j reads of it."""

        implements = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]  # noqa: RUF012
