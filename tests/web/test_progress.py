"""The page Progress of a checkpoint whose query is elsewhere: what the logs show."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.web import subjects
from tests.labs.saved_query import Query, written
from tests.web.conftest import Serve
from tests.web.test_pages import read


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 2, batches=5, operators=(0,))


def test_the_logs_show_input_watermark_and_sizes(serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "FACTS_S", 0.0)
    client = serve(query.location)
    told = read(client, "/c/0/progress")
    assert told["source"] == "logs"
    assert [each["batch"] for each in told["progress"]] == [4, 3, 2, 1, 0]
    assert [each["input_rows"] for each in told["progress"]] == [1, 1, 1, 1, None]
    assert told["newest"]["watermark_ms"] == 4000
    read(client, "/c/0/states")
    sizes = [read(client, "/c/0/progress")["sizes"][0]]
    query.run()
    read(client, "/c/0/states")
    sizes.insert(0, read(client, "/c/0/progress")["sizes"][0])
    assert [each["batch"] for each in sizes] == [5, 4]
    stored = sum(meta.rows for meta in query.metas.values())
    assert sizes[0]["state_rows"] == stored
    assert "Rows of state" in client.get("/c/0/progress").text


def test_each_entry_of_the_log_is_read_once(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    first = read(client, "/c/0/progress")["progress"]
    for batch in range(4):  # an entry never changes; the newest one is read for every page
        Path(query.location, "offsets", str(batch)).write_bytes(b"\0damaged")
    assert read(client, "/c/0/progress")["progress"][0] == first[0]


def test_a_damaged_entry_is_named_and_the_others_are_shown(serve: Serve, query: Query) -> None:
    Path(query.location, "offsets", "2").write_bytes(b"v1\n{")
    told = read(serve(query.location), "/c/0/progress")["progress"]
    assert [each["batch"] for each in told if each["problem"]] == [2]
    assert "offsets/2 is damaged" in next(each["problem"] for each in told if each["problem"])
    assert [each["input_rows"] for each in told] == [1, None, None, 1, None]


def test_a_planned_batch_that_is_not_committed_is_shown_as_such(serve: Serve, query: Query) -> None:
    query.plan()
    client = serve(query.location)
    newest = read(client, "/c/0/progress")["newest"]
    assert (newest["batch"], newest["is_committed"], newest["batch_ms"]) == (5, False, None)
    assert "not committed" in client.get("/c/0/progress").text
