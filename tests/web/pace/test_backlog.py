"""How far a batch ends before what its sources have."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_ckpt.web.pace.backlog import count_backlog, count_between


@pytest.mark.parametrize(
    ("begin", "end", "distance"),
    [
        (3, 10, 7),
        (10, 3, 0),
        ("3", "10", 7),
        ({"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 7}}, 4),
        ('{"t":{"0":5}}', '{"t":{"0":9}}', 4),
        ({"t": {"0": 5}}, {"t": {"0": 5, "1": 2}}, 2),
        ({"t": {"0": 5}}, {"t": {"0": 5}, "u": {"0": 3}}, 3),
        ({"logOffset": 1}, {"logOffset": 4}, 3),
        ({"t": {"0": 9}}, {"t": {"0": 2}}, 0),
        ({"at": "2026"}, {"at": "2027"}, None),
        ("text", "other", None),
        (True, True, None),
        (3, {"t": 4}, None),
    ],
)
def test_offsets_between_two_entries_are_counted_where_they_are_numbers(
    begin: Any,  # noqa: ANN401
    end: Any,  # noqa: ANN401
    distance: int | None,
) -> None:
    assert count_between(begin, end) == distance


def test_the_backlog_is_that_of_the_sources_that_tell_it() -> None:
    tells = {"latestOffset": {"t": {"0": 50}}, "endOffset": {"t": {"0": 20}}}
    assert count_backlog([tells, {"latestOffset": None, "endOffset": 3}]) == 30
    assert count_backlog([{"latestOffset": None, "endOffset": 3}]) is None
    assert count_backlog([]) is None
