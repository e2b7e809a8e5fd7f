"""Long tests that take turns: each has one, and a wrong setting is refused."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from integration.long_tests import ROOT, find_long, name_of, read_names
from integration.turns import OLDER, PARTS, TURNS, find_turn, take, take_older


def test_every_test_has_its_turn() -> None:
    names = list("abcdefgh")
    parts = [take(names, turn) for turn in range(PARTS)]
    assert sorted(chain.from_iterable(parts)) == names
    assert take(names, None) == names


def test_every_part_meets_every_older_spark() -> None:
    names = list(range(PARTS))
    taken = {(each, older) for turn in range(TURNS) for each in take(names, turn) for older in take_older(turn)}
    assert taken == {(each, older) for each in names for older in OLDER}
    assert take_older(None) == list(OLDER)


def test_the_turn_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_TURN", "all")
    assert find_turn() is None
    monkeypatch.setenv("CKPT_TURN", "2")
    assert find_turn() == 2
    monkeypatch.delenv("CKPT_TURN")
    assert find_turn() in {None, *range(TURNS)}


@pytest.mark.parametrize("wrong", [str(TURNS), "-1", "x"])
def test_a_turn_that_there_is_not_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_TURN", wrong)
    with pytest.raises(ValueError, match=f"CKPT_TURN is '{wrong}'"):
        find_turn()


def test_every_long_test_is_there() -> None:
    """Those that were renamed or deleted are no longer named: see ``integration.long_tests``."""
    for name in read_names():
        file, *classes, function = name.split("::")
        sought = classes[0] if classes else f"def {function}("
        assert sought in (ROOT / file).read_text(encoding="utf-8"), name


def test_long_tests_are_found_in_a_report(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    cases = [
        ("tests.test_turns", "test_a[b]", 2.5),
        ("tests.test_turns", "test_a[c]", 0.1),
        ("tests.test_turns", "test_d", 0.9),
        ("tests.contracts.test_hdfs_place.TestHdfsPlace", "test_e[f-g]", 60),
    ]
    lines = [f'<testcase classname="{module}" name="{name}" time="{time_s}"/>' for module, name, time_s in cases]
    report.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>", encoding="utf-8")
    found = {"tests/test_turns.py::test_a", "tests/contracts/test_hdfs_place.py::TestHdfsPlace::test_e"}
    assert find_long(report) == found
    assert name_of("tests/test_turns.py::test_a[b]") == "tests/test_turns.py::test_a"
