"""Entries of the offset log that were exchanged or copied are found, and whatever a query may have written is not."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.query.misplaced import find_misplaced
from pyspark_ckpt.state_store.checkpoints.query.spark_files import check_form
from pyspark_ckpt.state_store.errors import FormatError
from tests.labs.saved_query import Query, written

CONF = {"spark.sql.shuffle.partitions": "2"}
NUMBERS = range(6)


def entry(clock: int, *offsets: str, version: int = 1) -> bytes:
    times = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": clock, "conf": CONF})
    return "\n".join([f"v{version}", times, *offsets]).encode()


def misplaced(*contents: bytes) -> list[int]:
    found = find_misplaced({f"offsets/{number}": content for number, content in enumerate(contents)})
    return sorted(int(name.removeprefix("offsets/")) for name in found)


ENTRIES = [entry(1000 + number, f'{{"logOffset":{number}}}', f'{{"t":{{"0":{9 * number}}}}}') for number in NUMBERS]


def test_entries_in_their_order_are_right() -> None:
    assert misplaced(*ENTRIES) == []


@pytest.mark.parametrize(("here", "there"), [pair for pair in permutations(NUMBERS, 2) if pair[0] < pair[1]])
def test_two_that_were_exchanged_are_found(here: int, there: int) -> None:
    contents = list(ENTRIES)
    contents[here], contents[there] = contents[there], contents[here]
    assert {here, there} <= set(misplaced(*contents))


@pytest.mark.parametrize(("source", "over"), [pair for pair in permutations(NUMBERS, 2) if abs(pair[0] - pair[1]) > 1])
def test_one_that_was_copied_over_another_is_found_and_no_other(source: int, over: int) -> None:
    contents = list(ENTRIES)
    contents[over] = contents[source]
    assert misplaced(*contents) == [over]


def test_the_reason_names_another_entry() -> None:
    (why,) = find_misplaced({"offsets/2": ENTRIES[2], "offsets/3": ENTRIES[3], "offsets/4": ENTRIES[1]}).values()
    assert why == "is older than offsets/2: entries were exchanged, or one was copied over another"


@pytest.mark.parametrize(
    "contents",
    [
        [entry(5, '{"logOffset":1}'), entry(5, '{"logOffset":2}'), entry(5, '{"logOffset":2}')],
        [entry(5, '{"logOffset":1}'), entry(3, '{"logOffset":2}'), entry(2, '{"logOffset":2}')],
        [entry(5, '{"t":{"0":9,"1":4}}'), entry(6, '{"t":{"0":0,"1":0}}')],
        [entry(5, '{"t":{"0":9}}'), entry(4, '{"t":{"0":9,"1":0}}'), entry(3, '{"t":{"0":9,"1":0},"new":{"0":0}}')],
        [entry(5, '{"logOffset":7}', '{"logOffset":3}'), entry(4, '{"logOffset":3}')],
        [entry(5, '{"logOffset":3}'), entry(4, '{"logOffset":1}', '{"logOffset":3}')],
        [entry(5, '0:{"logOffset":7}', version=2), entry(4, '1:{"logOffset":3}', version=2)],
        [entry(5, "-"), entry(4, "0"), entry(3, "1"), entry(2, "-")],
        [entry(5, '{"reservoirVersion":4,"index":9}'), entry(4, '{"reservoirVersion":5,"index":-1}')],
        [entry(5, '{"shard":"9"}'), entry(4, '{"shard":"8"}')],
        [b"v1\n{}\n1", b"v1\n{}\n0"],
    ],
    ids=repr,
)
def test_what_a_query_may_write_is_right(contents: list[bytes]) -> None:
    assert misplaced(*contents) == []


@pytest.mark.parametrize(
    "offsets",
    [
        ["9", "3"],
        ['{"t":{"0":9,"1":4}}', '{"t":{"0":8,"1":5}}'],
        ['{"a":{"0":9},"b":{"0":1}}', '{"a":{"0":9},"b":{"0":0}}'],
        ['{"reservoirVersion":4,"index":-1}', '{"reservoirVersion":3,"index":-1}'],
    ],
    ids=repr,
)
def test_numbers_of_any_source_are_compared(offsets: list[str]) -> None:
    before, after = offsets
    assert misplaced(entry(5, before), entry(4, after)) == [0, 1], "nothing tells which one is wrong"


@pytest.fixture
def query(quick_path: Path) -> Query:
    """Five batches are committed: 0 to 4."""
    return written(quick_path / "query", 2, batches=5, operators=(0,))


def run_both(query: Query, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], str]:
    """What ``repair`` would do, and what ``verify`` says."""
    capsys.readouterr()
    main(["checkpoint", "repair", query.location, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert (main(["checkpoint", "verify", query.location]) == 0) == found["is_healthy"]
    return found, capsys.readouterr().out


@pytest.mark.parametrize(("newest", "cut"), [(3, [3, 4]), (4, [4, 4])])
def test_a_copied_entry_is_gone_back_before(
    newest: int, cut: list[int], query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.place.put(f"offsets/{newest}", query.place.get("offsets/1"))
    query.place.delete("commits/4")
    found, verified = run_both(query, capsys)
    why = f"{query.location}/offsets/{newest} is older than offsets/2: entries were exchanged, or one was copied over"
    assert f"{why} another." in str(found["problems"])
    assert f"{why} another: the query would read wrong rows" in verified
    assert (found["continues_after_batch"], found["cut_anew"]) == (newest - 1, cut)


def test_exchanged_entries_are_gone_back_before(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = query.place.get("offsets/3"), query.place.get("offsets/4")
    query.place.put("offsets/3", there)
    query.place.put("offsets/4", here)
    found, verified = run_both(query, capsys)
    assert found["continues_after_batch"] == 2
    assert "offsets/3 is newer than offsets/4" in verified
    assert "offsets/4 is older than offsets/3" in verified


@pytest.mark.parametrize("is_copy", [False, True])
def test_logs_of_files_under_other_names_are_damaged(
    is_copy: bool,  # noqa: FBT001
    query: Query,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here, there = query.place.get("sources/0/2"), query.place.get("sources/0/4")
    query.place.put("sources/0/4", here)
    if not is_copy:
        query.place.put("sources/0/2", there)
    found, verified = run_both(query, capsys)
    why = f"{query.location}/sources/0/4 is damaged: line 2 has batchId 2, not 4. Files were exchanged"
    assert why in str(found["problems"])
    assert why in verified
    assert found["continues_after_batch"] == (3 if is_copy else 1)


def test_logs_of_several_batches_have_earlier_numbers() -> None:
    content = b'v1\n{"path":"/a","batchId":0}\n{"path":"/b","batchId":9}'
    check_form("sources/0/9.compact", content, "it", {"0"})
    check_form("sources/0/8", content, "it")  # of a source of another program
    with pytest.raises(FormatError, match="line 3 has batchId 9, not 8 or less"):
        check_form("sources/0/8.compact", content, "it", {"0"})
    with pytest.raises(FormatError, match="line 2 has batchId 0, not 9"):
        check_form("sources/0/9", content, "it", {"0"})
