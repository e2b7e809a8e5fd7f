"""Long tests that take turns: each has one, and a wrong setting is refused."""

from __future__ import annotations

from itertools import chain

import pytest

from integration.turns import IN_TURN, TURNS, find_turn, take, take_older


def test_every_test_has_its_turn() -> None:
    names = list("abcdefgh")
    parts = [take(names, turn) for turn in range(TURNS)]
    assert sorted(chain.from_iterable(parts)) == names
    assert take(names, None) == names


def test_every_older_spark_has_its_turn() -> None:
    taken = [take_older(turn) for turn in range(TURNS)]
    assert all(len(each) == 1 for each in taken)
    assert set(chain.from_iterable(taken)) == set(IN_TURN) == set(take_older(None))


def test_the_turn_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_TURN", "all")
    assert find_turn() is None
    monkeypatch.setenv("CKPT_TURN", "2")
    assert find_turn() == 2
    monkeypatch.delenv("CKPT_TURN")
    assert find_turn() in {None, *range(TURNS)}


@pytest.mark.parametrize("wrong", ["6", "-1", "x"])
def test_a_turn_that_there_is_not_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_TURN", wrong)
    with pytest.raises(ValueError, match=f"CKPT_TURN is '{wrong}'"):
        find_turn()
