"""The series as instruments of OpenTelemetry. Needs opentelemetry-sdk, or another implementation of its API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Meter, MeterProvider, Observation

from pyspark_ckpt.metrics.families import PREFIX, Family, all_families
from pyspark_ckpt.metrics.series import Series
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions

SCOPE = "pyspark_ckpt"
_UNITS = {"seconds": "s", "bytes": "By", "": ""}
"""Numbers have no unit: Prometheus would name a gauge with the unit 1 a ratio."""


class _Instruments:
    """The instruments of a meter. They cannot be removed, so a later export uses the same."""

    def __init__(self, meter: Meter) -> None:
        self.series: Series | None = None
        for family in all_families():
            made = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
            made(f"{PREFIX}.{family.name}", [self._observe(family)], _UNITS[family.unit], family.text)

    def _observe(self, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            series = self.series
            if series is None:
                return []
            return [
                Observation(value, dict(zip(family.labels, labels, strict=True)))
                for _, labels, value in series.read(family)
            ]

        return observe


_made: WeakKeyDictionary[Meter, _Instruments] = WeakKeyDictionary()
_lock = threading.Lock()


class MeterExport:
    """A meter has the series, until this is closed."""

    def __init__(self, series: Series, meter: Meter) -> None:
        """Make the instruments, or use those of an earlier export. Raises LifecycleError if they are in use."""
        with _lock:
            if meter not in _made:
                _made[meter] = _Instruments(meter)
            self._instruments: _Instruments | None = _made[meter]
            if self._instruments.series is not None:
                raise LifecycleError(
                    "The meter already has the metrics of pyspark-ckpt.",
                    hint="Call follow(session) of the handle that export_metrics() returned, or close it.",
                )
            self._instruments.series = series

    def close(self) -> None:
        """Let the instruments observe nothing."""
        instruments, self._instruments = self._instruments, None
        if instruments is not None:
            instruments.series = None


def make_export(series: Series, target: object) -> MeterExport:
    """Export to a meter, or to one of a provider. Raises InvalidInputError, LifecycleError."""
    if isinstance(target, MeterProvider):
        target = target.get_meter(SCOPE)
    if not isinstance(target, Meter):
        raise InvalidInputError(f"otel must be a MeterProvider or a Meter of OpenTelemetry, got {target!r}.")
    return MeterExport(series, target)
