"""The listener that tells the series of a session's queries. This module needs PySpark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent, StreamingQueryListener
from typing_extensions import override

from pyspark_ckpt.metrics.progress import Progress, read_event, read_packed, read_progress
from pyspark_ckpt.metrics.series import Series
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
        self._runs: dict[str, str] = {}

    @override
    def onQueryStarted(self, event: Any) -> None:
        self._runs[str(event.runId)] = str(event.id)
        self._work(lambda: self._series.start(str(event.id), str(event.runId), event.name, self._read_restore_target()))

    @override
    def onQueryProgress(self, event: Any) -> None:
        self.tell_progress(lambda: read_progress(event.progress.json))

    @override
    def onQueryIdle(self, event: Any) -> None:
        """An idle query has no news."""

    @override
    def onQueryTerminated(self, event: Any) -> None:
        self._runs.pop(str(event.runId), None)
        self._work(
            lambda: self._series.end(
                str(event.id),
                str(event.runId),
                failed=event.exception is not None,
                error_class=event.errorClassOnException or "",
            )
        )

    def tell_progress(self, read: Callable[[], Progress], took_ns: int = 0) -> None:
        """Tell of the progress of a batch. ``took_ns``: how long the JVM has worked on it before."""
        self._work(lambda: self._add(read()), took_ns)

    def end_runs(self) -> None:
        """End all runs that are not known to have ended: Spark reports no ends after its session was stopped."""
        while self._runs:
            run_id, query_id = self._runs.popitem()
            self._series.end(query_id, run_id, failed=False)

    def _add(self, progress: Progress) -> None:
        if self._series.knows(progress.id):
            self._series.add(progress, 0)
        else:
            self._runs[progress.run_id] = progress.id
            self._series.add(progress, self._read_restore_target())

    def _read_restore_target(self) -> float:
        value = self._read_conf(PREFIX + _RESTORE_TARGET)
        return parse({} if value is None else {_RESTORE_TARGET: value}).restore_target_s

    def _work(self, work: Callable[[], None], took_ns: int = 0) -> None:
        started, failed = time.perf_counter_ns() - took_ns, False
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
        """The listener as the JVM calls it. PySpark's own asks the JVM separately for each number of a progress."""
        from py4j.java_gateway import JavaClass  # noqa: PLC0415 - a Spark Connect client has none
        from pyspark import SparkContext  # noqa: PLC0415

        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001
            own = jvm.org.apache.spark.sql.ckpt.plan.EventTeller
            if isinstance(own, JavaClass):
                self._jlistenerobj = own(_ToldByOwnJar(self))
            else:  # a session without the jar of this package
                self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_ToldBySpark(self))
        return self._jlistenerobj


class _Told:
    """The listener as py4j calls it."""

    def __init__(self, listener: SeriesListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802, ANN401
        self._listener.onQueryStarted(QueryStartedEvent.fromJObject(event))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ANN401
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))


class _ToldByOwnJar(_Told):
    """The call brings the text of a progress."""

    def onQueryProgress(self, text: str, took_ns: int) -> None:  # noqa: N802
        self._listener.tell_progress(lambda: read_packed(text), took_ns)

    class Java:
        """What py4j reads of it."""

        implements = ["org.apache.spark.sql.ckpt.plan.PythonEvents"]  # noqa: RUF012


class _ToldBySpark(_Told):
    """Each call asks for the text of a progress."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802, ANN401
        self._listener.tell_progress(lambda: read_event(event.json()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802, ANN401
        """See SeriesListener."""

    class Java:
        """What py4j reads of it."""

        implements = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]  # noqa: RUF012
