"""Local copies of a store: those that are whole are used again, damaged ones replaced, and in the end all go."""

from __future__ import annotations

import pytest

from tests.labs.lab import Lab, expected


def test_local_copies_are_used_when_a_killed_server_comes_back(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 5)
    lab.server.settled()
    lab.restart()
    handle = lab.open()
    for path in lab.remote.iterdir():
        path.unlink()
    assert lab.begin(handle, 5, ids[4]).rows == expected(5)
    assert lab.begin(handle, 4, ids[3]).rows == expected(4)


def test_local_copies_that_nobody_asks_for_go_when_an_hour_is_over(lab: Lab) -> None:
    lab.grow(lab.open(), 1)
    lab.partition = 4
    (kept,) = lab.grow(lab.open(), 1)
    lab.restart()
    folders = lab.local_dir / "stores"
    handle = lab.open()
    assert len(list(folders.iterdir())) == 2
    lab.server.stores._started -= 3601
    lab.open()
    lab.server.settled()
    (left,) = folders.iterdir()
    assert left.name.startswith("0-4-")
    assert lab.begin(handle, 1, kept).rows == expected(1)


def test_local_copies_are_dropped_when_the_machine_was_booted_again(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 3)
    (lab.local_dir / "boot").write_text("another")
    lab.restart()
    assert lab.begin(lab.open(), 3, ids[2]).answer["metrics"]["restored"] == 1


def test_a_local_copy_that_is_damaged_is_replaced(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 3)
    lab.server.settled()
    for path in lab.local_dir.rglob("MANIFEST-*"):
        path.write_bytes(b"rubbish")
    lab.restart()
    assert lab.begin(lab.open(), 3, ids[2]).rows == expected(3)


def lose_a_table_of_the_copy(lab: Lab, version: int) -> None:
    """What a cleaner of temporary folders does to a frozen copy."""
    (meta,) = lab.local_dir.glob(f"stores/*/*/{version:020d}-*.json")
    max((meta.parent / "db").glob("*.sst")).unlink()


def test_a_damaged_local_copy_is_replaced_when_it_is_asked_for(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.server.settled()
    lose_a_table_of_the_copy(lab, 2)
    txn = lab.begin(handle, 2, ids[1])
    assert txn.rows == expected(2)
    assert txn.answer["metrics"]["restored"] == 1
    assert "the local copy of version 2" in caplog.text
    assert lab.begin(handle, 2, ids[1]).answer["metrics"]["restored"] == 0
    assert lab.begin(handle, 3, ids[2]).rows == expected(3)


def test_a_damaged_local_copy_is_passed_over_when_a_later_version_is_restored(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[2])  # keeps version 3 live
    sibling = lab.begin(handle, 2, ids[1]).commit()["id"]
    lose_a_table_of_the_copy(lab, 2)
    assert lab.begin(handle, 3, sibling).rows == expected(2)


def test_shutting_down_removes_the_local_copies(lab: Lab) -> None:
    lab.grow(lab.open(), 3)
    lab.server.stores.shut_down()
    assert list((lab.local_dir / "stores").iterdir()) == []
