"""Attempts that do not know of each other, on one store: in one server, in two (two executors), across a restart.

Nobody waits and nobody fails for another; which commit stands is decided by the commit log (format 2) or by who was
first (format 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.labs.lab import CallError, Lab, Txn

pytestmark = pytest.mark.kill

Executors = tuple[Lab, Lab]


@pytest.fixture
def executors(tmp_path: Path) -> Iterator[Executors]:
    """Two state servers with local folders of their own, on one checkpoint."""
    first, second = Lab(tmp_path / "one", retentionGracePeriod="0"), Lab(tmp_path / "two", retentionGracePeriod="0")
    second.checkpoint = first.checkpoint
    with ExitStack() as stack:
        for lab in (first, second):
            stack.callback(_shut_down, lab)
        yield first, second


def _shut_down(lab: Lab) -> None:
    lab.server.stores.shut_down()  # of the server it has by then: tests restart it


def _put(lab: Lab, handle: int, version: int, commit_id: str | None, value: str) -> Txn:
    txn = lab.begin(handle, version, commit_id)
    txn.put("key", value)
    return txn


def test_either_attempt_may_stand_when_both_commit_on_one_base_from_two_executors(executors: Executors) -> None:
    one, two = executors
    a, b = _put(one, one.open(), 0, None, "a"), _put(two, two.open(), 0, None, "b")
    ids = {"b": b.commit()["id"], "a": a.commit()["id"]}
    for lab in executors:
        for value, commit_id in ids.items():
            assert lab.begin(lab.open(), 1, commit_id).rows == {"key": value}
    one.log_commit(0, [ids["b"]])
    assert one.begin(one.open(run="a reader"), 1).rows == {"key": "b"}


def test_the_first_stands_for_all_executors_when_two_commit_in_format_1(executors: Executors) -> None:
    one, two = executors
    a, b = _put(one, one.open(fmt=1), 0, None, "a"), _put(two, two.open(fmt=1), 0, None, "b")
    first = b.commit()
    assert a.commit()["id"] == first["id"]
    for lab in executors:
        assert lab.begin(lab.open(fmt=1), 1).rows == {"key": "b"}
    for lab in executors:
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(fmt=1), 1).rows == {"key": "b"}


@pytest.mark.parametrize("fmt", [1, 2])
def test_a_zombie_changes_nothing_when_it_commits_after_later_versions(executors: Executors, fmt: int) -> None:
    one, two = executors
    handle, other = one.open(fmt=fmt, keep=2), two.open(fmt=fmt, keep=2)
    zombie = _put(two, other, 0, None, "zombie")
    ids = one.grow(handle, 6)
    for batch, commit_id in enumerate(ids):
        one.log_commit(batch, [commit_id] if fmt == 2 else None)
    one.server.call("snapshot", handle=handle, force=True)
    one.server.call("cleanup", handle=handle)
    zombie.commit()
    expected = {f"key-{number}": f"value-{number}" for number in range(1, 7)}
    for lab in executors:
        last = lab.begin(lab.open(fmt=fmt, keep=2), 6, ids[-1] if fmt == 2 else None)
        assert last.rows == expected
        last.put("key-7", "value-7")
        assert lab.begin(lab.open(fmt=fmt, keep=2), 7, last.commit()["id"]).rows == expected | {"key-7": "value-7"}
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(fmt=fmt, keep=2), 6, ids[-1] if fmt == 2 else None).rows == expected


def test_a_zombie_reads_its_base_to_the_end_when_others_commit_and_clean_up(executors: Executors) -> None:
    one, _ = executors
    handle = one.open(keep=1)
    *_, old, base = one.grow(handle, 4)
    zombie = one.begin(handle, 3, old)
    seen = dict(zombie.rows)
    for version in range(4, 9):
        base = one.grow(handle, 1, version, base)[-1]
        one.server.call("snapshot", handle=handle, force=True)
        one.server.call("cleanup", handle=handle)
    again = Txn(one.server, zombie.answer)
    assert again.rows == seen
    zombie.put("late", "zombie")
    zombie.commit()
    assert "late" not in one.begin(handle, 9, base).rows


@pytest.mark.parametrize("fmt", [1, 2])
def test_a_transaction_of_a_dead_server_touches_none_of_the_next_one(executors: Executors, fmt: int) -> None:
    one, _ = executors
    old = _put(one, one.open(fmt=fmt), 0, None, "of the dead server")
    one.restart()
    new = _put(one, one.open(fmt=fmt), 0, None, "of the next server")
    one.server.call("abort", txn=old.number)
    with pytest.raises(CallError) as refused:
        one.server.call("commit", txn=old.number, files=[])
    assert refused.value.kind == "LifecycleError"
    assert one.begin(one.open(fmt=fmt), 1, new.commit()["id"]).rows == {"key": "of the next server"}
