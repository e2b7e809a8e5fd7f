"""The short set of tests: what every Spark has to pass, some minutes of them (``-m every_spark``).

The rest of the tests runs on the newest Spark alone.
"""

from __future__ import annotations

_OPERATORS = (
    "aggregation",
    "change_feed",
    "connect_inputs",
    "deduplication",
    "group_functions",
    "grouped_python",
    "idle_silence",
    "join",
    "keyed",
    "limit",
    "reading_state",
    "restart",
    "session_windows",
    "state_reader",
    "stateful",
    "timers",
    "transform_with_state",
    "vector_states",
)
SHORT = (
    *(f"integration/operators/test_{name}.py" for name in _OPERATORS),
    "integration/crash/test_driver_kill.py::test_the_initial_state_is_there_once",
    "integration/savepoints/test_rescale_keyed.py",
    "integration/savepoints/test_rescale.py",
    "integration/savepoints/test_running.py",
)
"""Files, or beginnings of the names of tests."""

SINCE = {
    "format 4": "4.3",  # of joins
}
"""From which release on Spark has what tests are about, by a part of their names."""
