"""Who may rescale a query: one call of a process, and one driver."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from pyspark_ckpt.running.turns import Turn, only_call
from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import LifecycleError

HERE, ELSEWHERE = "app-1 on here", "app-2 on elsewhere"


def begin(place: LocalPlace, driver: str) -> str:
    """Begin a run of the query, as a driver does. Return its id."""
    run_id = str(uuid.uuid4())
    Epochs(place).take(RunObject(RUN_FORMAT, run_id, driver))
    return run_id


@pytest.fixture
def old(quick_path: Path) -> LocalPlace:
    """The checkpoint from which the query is to move."""
    return LocalPlace(quick_path / "old")


@pytest.fixture
def new(quick_path: Path) -> LocalPlace:
    """The checkpoint to which the query is to move."""
    return LocalPlace(quick_path / "new")


def test_a_turn_ends_when_the_query_is_started_or_rescaled_by_others(old: LocalPlace, new: LocalPlace) -> None:
    begin(old, HERE)
    turn = Turn.take(old, new, HERE, "new")
    newest = Epochs(old).find_newest()
    assert newest is not None
    assert newest.moves_to == "new"
    turn.require()
    later = Turn.take(old, new, ELSEWHERE, "newer")
    with pytest.raises(LifecycleError, match=r"being rescaled by another driver: .*driver app-2 on elsewhere"):
        turn.require()
    later.require()
    begin(old, HERE)
    with pytest.raises(LifecycleError, match="it was started meanwhile"):
        later.require()


def newest(place: LocalPlace) -> RunObject:
    """The newest run."""
    found = Epochs(place).find_newest()
    assert found is not None
    return found


def test_a_turn_that_is_finished_says_that_the_query_has_gone_and_one_that_is_given_up_that_it_stays(
    old: LocalPlace, new: LocalPlace
) -> None:
    begin(old, HERE)
    turn = Turn.take(old, new, HERE, "new")
    assert (newest(old).moves_to, newest(old).moved_at_ms) == ("new", 0)
    turn.finish()
    turn.require()
    assert newest(old).moves_to == "new"
    assert abs(newest(old).moved_at_ms - time.time() * 1000) < 60_000
    again = Turn.take(old, new, HERE, "new")
    assert newest(old).moved_at_ms, "it has gone there, whatever the second call comes to"
    again.give_up()
    assert (newest(old).moves_to, newest(old).moved_at_ms) == ("", 0)
    third = Turn.take(old, new, HERE, "newer")
    begin(old, ELSEWHERE)
    with pytest.raises(LifecycleError, match="it was started meanwhile"):
        third.finish()
    assert newest(old).driver == ELSEWHERE
    third.overrule()
    assert (newest(old).moves_to, bool(newest(old).moved_at_ms)) == ("newer", True)


def test_a_new_checkpoint_names_the_old_one_until_the_query_is_started_there(old: LocalPlace, new: LocalPlace) -> None:
    turn = Turn.take(old, new, HERE, "new")
    turn.point_back(new, "old")
    assert newest(new).moves_to == "old"
    assert turn.find_other(new, ()) is None
    turn.point_back(new, "older")
    assert newest(new).moves_to == "old", "once is enough"
    began = begin(new, HERE)
    assert newest(new).moves_to == ""
    Turn.take(old, new, HERE, "new").point_back(new, "old")
    assert newest(new).run_id == began, "it has begun there"


def test_a_run_on_the_new_checkpoint_is_of_another_driver_unless_it_is_known(old: LocalPlace, new: LocalPlace) -> None:
    died = begin(new, ELSEWHERE)
    turn = Turn.take(old, new, HERE, "new")
    assert turn.before == died
    assert turn.find_other(new, ()) is None, "its driver had begun before, and may be dead"
    own = begin(new, HERE)
    assert turn.find_other(new, ()) is None, "a run that `start` has begun before it failed"
    assert turn.find_other(new, {own}) is None
    again = begin(new, HERE)
    other = turn.find_other(new, {own})
    assert other is not None
    assert other.run_id == again, "a second attempt of an application of YARN has its name"
    begin(new, ELSEWHERE)
    with pytest.raises(LifecycleError, match=r"another driver has started it on .*new meanwhile: .*app-2 on elsewhere"):
        turn.require_no_other(new, ())


def test_a_query_is_rescaled_by_one_call_at_a_time() -> None:
    with only_call("a query"):
        with only_call("another query"):
            pass
        with pytest.raises(LifecycleError, match="is being rescaled by another call"), only_call("a query"):
            pytest.fail("two calls at a time")
    with only_call("a query"):
        pass
