"""The listener that tells the series of a session's queries. This module needs PySpark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent, StreamingQueryListener
from typing_extensions import override

from pyspark_ckpt.monitoring.progress import Progress, read_progress
from pyspark_ckpt.monitoring.series import Series
from pyspark_ckpt.state_store.log import LOGGER
from pyspark_ckpt.state_store.options import PREFIX, parse

_RESTORE_TARGET = "restoreTarget"
_log = logging.getLogger(f"{LOGGER}.monitoring")


class SeriesListener(StreamingQueryListener):
    """Tells ``series`` of each event. It never raises: a problem is logged once, and counted."""

    def __init__(self, series: Series, read_conf: Callable[[str], str | None]) -> None:
        """Begin to listen when a session is given this listener. ``read_conf`` reads a setting of the session."""
        self._series = series
        self._read_conf = read_conf
        self._has_told = False

    @override
    def onQueryStarted(self, event: Any) -> None:
        self._work(lambda: self._series.start(str(event.id), str(event.runId), event.name, self._read_restore_target()))

    @override
    def onQueryProgress(self, event: Any) -> None:
        self.add_progress(lambda: event.progress.json)

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

    def add_progress(self, read: Callable[[], str]) -> None:
        """Tell of the progress of a batch, which ``read`` returns as JSON."""
        self._work(lambda: self._add(read_progress(read())))

    def _add(self, progress: Progress) -> None:
        is_known = self._series.knows(progress.id)
        self._series.add(progress, 0 if is_known else self._read_restore_target())

    def _read_restore_target(self) -> float:
        value = self._read_conf(PREFIX + _RESTORE_TARGET)
        return parse({} if value is None else {_RESTORE_TARGET: value}).restore_target_s

    def _work(self, work: Callable[[], None]) -> None:
        started, failed = time.perf_counter_ns(), False
        try:
            work()
        except Exception:  # noqa: BLE001 - whatever it is, the query goes on
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

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802, ANN401
        self._listener.onQueryStarted(QueryStartedEvent.fromJObject(event))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802, ANN401
        self._listener.add_progress(lambda: event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802, ANN401
        """See SeriesListener."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ANN401
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        """What py4j reads of it."""

        implements = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]  # noqa: RUF012
