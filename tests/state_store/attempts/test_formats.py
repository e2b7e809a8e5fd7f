"""Checkpoint format 1, and queries flipped between the formats: nobody names ids, or only sometimes."""

from __future__ import annotations

import pytest

from tests.labs.lab import CallError, Lab


def commit(lab: Lab, handle: int, version: int, value: str, commit_id: str | None = None) -> str:
    txn = lab.begin(handle, version, commit_id)
    txn.put("k", value)
    return str(txn.commit()["id"])


def test_versions_are_found_without_ids(lab: Lab) -> None:
    handle = lab.open(fmt=1)
    for version in range(5):
        commit(lab, handle, version, f"v{version + 1}")
    for version in range(1, 6):
        assert lab.begin(handle, version).rows == {"k": f"v{version}"}
        lab.restart(lose_local=True)
        handle = lab.open(run="run-2", fmt=1)
        assert lab.begin(handle, version).rows == {"k": f"v{version}"}


def test_the_first_wins_within_a_run(lab: Lab) -> None:
    handle = lab.open(fmt=1)
    one, two = lab.begin(handle, 0), lab.begin(handle, 0)
    one.put("k", "one")
    two.put("k", "two")
    first, second = one.commit(), two.commit()
    assert second["id"] == first["id"]
    assert second["metrics"]["superseded"] == 1
    assert lab.begin(handle, 1).rows == {"k": "one"}
    assert len(lab.objects(".delta")) == 1


def test_the_first_wins_when_the_second_was_live(lab: Lab) -> None:
    handle = lab.open(fmt=1)
    lab.begin(handle, 0).commit()
    winner = lab.begin(handle, 1)
    winner.put("k", "one")
    late = lab.begin(handle, 1)
    late.put("k", "two")
    winner.commit()
    lab.restart(lose_local=True)
    handle = lab.open(fmt=1)
    other = lab.begin(handle, 1)
    other.put("k", "three")
    assert other.commit()["metrics"]["superseded"] == 1
    assert lab.begin(handle, 2).rows == {"k": "one"}


def test_a_newer_run_supersedes_an_older_one(lab: Lab) -> None:
    old = lab.open(run="old", fmt=1)
    commit(lab, old, 0, "base")
    commit(lab, old, 1, "wrong")
    new = lab.open(run="new", fmt=1)
    commit(lab, new, 1, "fixed")
    assert lab.begin(new, 2).rows == {"k": "fixed"}
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(run="newest", fmt=1), 2).rows == {"k": "fixed"}


def test_a_zombie_of_an_older_run_does_not_win(lab: Lab) -> None:
    old = lab.open(run="old", fmt=1)
    commit(lab, old, 0, "base")
    zombie = lab.begin(old, 1)
    zombie.put("k", "zombie")
    new = lab.open(run="new", fmt=1)
    commit(lab, new, 1, "fixed")
    zombie.commit()
    assert lab.begin(new, 2).rows == {"k": "fixed"}
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(run="newest", fmt=1), 2).rows == {"k": "fixed"}


def test_begin_makes_no_remote_request_when_this_run_committed_here(lab: Lab) -> None:
    handle = lab.open(fmt=1)
    commit(lab, handle, 0, "v1")
    commit(lab, handle, 1, "v2")
    for path in lab.remote.iterdir():
        path.unlink()
    assert lab.begin(handle, 2).rows == {"k": "v2"}


def test_a_query_flips_from_1_to_2_and_back(lab: Lab) -> None:
    one = lab.open(run="a", fmt=1)
    commit(lab, one, 0, "v1")
    commit(lab, one, 1, "stale")  # its batch never reached the commit log
    lab.log_commit(0, None)
    lab.restart(lose_local=True)
    two = lab.open(run="b", fmt=2)
    chosen = commit(lab, two, 1, "v2")  # the first begin of the new run has no id either
    commit(lab, two, 1, "lost speculation")
    lab.log_commit(1, ["somebody-elses", chosen])
    lab.restart(lose_local=True)
    three = lab.open(run="c", fmt=1)
    assert lab.begin(three, 2).rows == {"k": "v2"}
    commit(lab, three, 2, "v3")
    lab.log_commit(2, None)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(run="d", fmt=2), 3).rows == {"k": "v3"}


def test_siblings_that_nothing_tells_apart_are_an_error(lab: Lab) -> None:
    handle = lab.open(fmt=2)
    commit(lab, handle, 0, "one")
    commit(lab, handle, 0, "two")
    lab.restart(lose_local=True)
    with pytest.raises(CallError) as caught:
        lab.begin(lab.open(run="b", fmt=1), 1)
    assert caught.value.kind == "ConflictError"


def test_a_commit_that_the_log_names_is_not_found_when_the_folder_has_others_only(lab: Lab) -> None:
    handle = lab.open(fmt=2)
    commit(lab, handle, 0, "one")
    lab.log_commit(0, ["abcdef"])
    with pytest.raises(CallError, match="abcdef") as caught:
        lab.begin(lab.open(run="b", fmt=1), 1)
    assert caught.value.kind == "NotFoundError"


def test_a_commit_log_that_names_two_commits_of_one_store_is_damaged(lab: Lab) -> None:
    handle = lab.open(fmt=2)
    ids = [commit(lab, handle, 0, value) for value in ("one", "two")]
    lab.log_commit(0, ids)
    lab.restart(lose_local=True)
    with pytest.raises(CallError, match="the commit log names the ids") as caught:
        lab.begin(lab.open(run="b", fmt=1), 1)
    assert caught.value.kind == "FormatError"


@pytest.mark.parametrize("text", ["", "no version", 'v2\n{"stateUniqueIds":{"0":"x"}}', "v2\n{"])
def test_a_damaged_commit_log_is_named(lab: Lab, text: str) -> None:
    commit(lab, lab.open(), 0, "one")
    lab.log_commit(0, None)
    (lab.checkpoint / "commits" / "0").write_text(text)
    with pytest.raises(CallError, match="commits/0") as caught:
        lab.begin(lab.open(run="b", fmt=1), 1)
    assert caught.value.kind == "FormatError"


def test_a_reader_without_a_run_writes_nothing(lab: Lab) -> None:
    handle = lab.open(fmt=2)
    commit(lab, handle, 0, "one")
    reader = lab.open(run="", fmt=1)
    assert lab.begin(reader, 1).rows == {"k": "one"}
    assert not (lab.checkpoint / "_ckpt").exists()


def test_a_reader_outside_a_query_sees_the_new_commit_when_a_version_was_done_again(lab: Lab) -> None:
    handle = lab.open()
    one, two = lab.begin(handle, 0), lab.begin(handle, 0)
    one.put("k", "one")
    two.put("k", "two")
    ids = {"one": one.commit()["id"], "two": two.commit()["id"]}
    reader = lab.open(run="")
    for value, commit_id in ids.items():
        lab.log_commit(0, [commit_id])
        assert lab.begin(reader, 1).rows == {"k": value}


def test_a_version_that_never_was_is_not_found(lab: Lab) -> None:
    with pytest.raises(CallError) as caught:
        lab.begin(lab.open(fmt=1), 4)
    assert caught.value.kind == "NotFoundError"
