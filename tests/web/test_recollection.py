"""Answers that take long are made once at a time, kept, and shared."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_ckpt.state_store.errors import LifecycleError, StorageError
from pyspark_ckpt.web.recollection import Progress, Recollection


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_many_who_ask_share_one_answer(pool: ThreadPoolExecutor) -> None:
    made, asked, go = [], Recollection[int](pool, 60), threading.Event()

    def compute(_progress: Progress) -> int:
        go.wait(30)
        made.append(1)
        return len(made)

    with ThreadPoolExecutor(20) as askers:
        answers = [askers.submit(asked.recall, "key", compute, 30.0) for _ in range(20)]
        go.set()
        assert {each.result().value for each in answers} == {1}
    assert asked.recall("key", compute, 30).value == 1
    assert asked.recall("other", compute, 30).value == 2


def test_an_older_answer_is_given_while_a_newer_one_is_made(pool: ThreadPoolExecutor) -> None:
    asked, go = Recollection[str](pool, 60), threading.Event()
    assert asked.recall(1, lambda _: "old", 30).value == "old"

    def compute(progress: Progress) -> str:
        progress(3, 9)
        begun.set()
        go.wait(30)
        return "new"

    begun = threading.Event()
    first = asked.recall(2, compute, 0)
    begun.wait(30)
    again = asked.recall(2, compute, 0)
    assert (first.value, again.value, again.key, again.done, again.total) == ("old", "old", 1, 3, 9)
    go.set()
    assert asked.recall(2, compute, 30).value == "new"


def test_a_failure_is_told_to_all_and_not_kept_for_long(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, made = Recollection[int](pool, 60), []

    def fail(_progress: Progress) -> int:
        made.append(1)
        raise StorageError("down")

    for _ in range(5):
        with pytest.raises(StorageError, match="down"):
            asked.recall("", fail, 30)
    assert len(made) == 1
    monkeypatch.setattr("pyspark_ckpt.web.recollection.FAILED_S", 0)
    assert asked.recall("", lambda _: 7, 30).value == 7


def test_an_old_answer_is_made_again(pool: ThreadPoolExecutor) -> None:
    asked, made = Recollection[int](pool, 0.0), []

    def compute(_progress: Progress) -> int:
        made.append(1)
        return len(made)

    assert [asked.recall("", compute, 30).value for _ in range(3)] == [1, 2, 3]


def test_a_failure_that_is_told_often_does_not_grow(pool: ThreadPoolExecutor) -> None:
    """Each time it is raised, the stack trace of an exception gets longer."""

    def fail(_progress: Progress) -> int:
        raise StorageError("away")

    kept, lengths = Recollection[int](pool, 60), set()
    for _ in range(20):
        with pytest.raises(StorageError) as told:
            kept.recall("", fail, 10)
        lengths.add(len(list(traceback.walk_tb(told.tb))))
    assert len(lengths) <= 2, "when it is computed, and afterwards"


def test_a_page_that_is_closed_says_so() -> None:
    pool, gone = ThreadPoolExecutor(1), threading.Event()

    def compute(_progress: Progress) -> int:
        gone.wait(30)
        return 1

    running, queued, late = (Recollection[int](pool, 60) for _ in range(3))
    assert running.recall("key", compute, 0).value is None
    assert queued.recall("key", compute, 0).value is None
    pool.shutdown(wait=False, cancel_futures=True)
    for each in (queued, late):
        with pytest.raises(LifecycleError, match="The web page is closed"):
            each.recall("key", compute, 30)
    gone.set()
    assert running.recall("key", compute, 30).value == 1
