"""Begin, commit and abort as the shim sees them."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.copies import LocalCopies
from pyspark_ckpt.state_store.restore.versions import Leased, LocalVersions
from pyspark_ckpt.state_store.transactions.ticket import WorkerTask, read_ticket, ticket_path
from tests.labs.lab import DESCRIPTOR, CallError, Lab, expected, read_rows


def test_begin_reads_what_was_committed(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    txn = lab.begin(handle, 3, ids[-1])
    assert txn.rows == {f"key-{v}": f"value-{v}" for v in (1, 2, 3)}
    assert txn.answer["live"]


def test_commit_writes_one_object_a_version(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 2)
    assert lab.objects() == [f"{1:020d}-{ids[0]}-0.delta", f"{2:020d}-{ids[1]}-{ids[0]}.delta"]


def test_commit_without_files_makes_a_version(lab: Lab) -> None:
    handle = lab.open()
    done = lab.begin(handle, 0).commit()
    assert lab.begin(handle, 1, done["id"]).rows == {}


def test_commit_applies_files_in_order(lab: Lab) -> None:
    handle = lab.open()
    txn = lab.begin(handle, 0)
    txn.put("k", "old")
    txn.put("gone", "x")
    first = txn.stage("a.sst")
    txn.put("k", "new")
    txn.remove("gone")
    second = txn.stage("b.sst")
    done = lab.server.call("commit", txn=txn.number, files=[first, second], rows={"1": 1})
    assert lab.begin(handle, 1, done["id"]).rows == {"k": "new"}
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 1, done["id"]).rows == {"k": "new"}


def test_commit_answers_the_same_when_repeated(lab: Lab) -> None:
    txn = lab.begin(lab.open(), 0)
    done = txn.commit()
    again = lab.server.call("commit", txn=txn.number, files=[])
    assert again == done


def test_two_attempts_on_one_base_both_commit_and_either_may_stand(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    one, two = lab.begin(handle, 1, base), lab.begin(handle, 1, base)
    one.put("k", "one")
    two.put("k", "two")
    first, second = one.commit(), two.commit()
    assert lab.begin(handle, 2, second["id"]).rows["k"] == "two"
    assert lab.begin(handle, 2, first["id"]).rows["k"] == "one"


def test_a_commit_can_be_restored_when_the_live_database_moved_on_while_its_transaction_began(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    first = lab.begin(handle, 1, base)
    first.put("k", "first")
    leased = LocalVersions.lease
    is_committed: list[object] = []

    def late(versions: LocalVersions, marker: Marker) -> Leased:
        found = leased(versions, marker)
        if not is_committed:
            is_committed.append(first.commit())
            lab.server.settled()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(LocalVersions, "lease", late)
        begun = lab.server.call("begin", handle=handle, version=1, id=base)
    assert begun["rows"] == 1, "what the base has, and not what the live database has by now"
    assert not begun["live"]
    assert read_rows(begun) == {"key-1": "value-1"}
    second = lab.server.call("commit", txn=begun["txn"], files=[], rows={}, num_partitions=None)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 2, second["id"]).rows == {"key-1": "value-1"}


def test_a_transaction_of_no_run_commits_nothing(lab: Lab) -> None:
    (base,) = lab.grow(lab.open(), 1)
    txn = lab.begin(lab.open(run=""), 1, base)
    assert txn.rows == {"key-1": "value-1"}
    txn.put("k", "v")
    before = sorted(lab.remote.iterdir())
    for refused in ("its transaction belongs to no run of a query", "is ABORTED"):
        with pytest.raises(CallError, match=refused):
            lab.server.call("commit", txn=txn.number, files=[], rows={}, num_partitions=None)
    assert sorted(lab.remote.iterdir()) == before
    assert not Path(txn.answer["staging"]).exists()


def test_transactions_on_siblings_do_not_mix(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    siblings = []
    for value in ("one", "two"):
        txn = lab.begin(handle, 1, base)
        txn.put(value, value)
        siblings.append(txn.commit()["id"])
    open_ones = [lab.begin(handle, 2, sibling) for sibling in siblings]
    assert sorted(txn.answer["live"] for txn in open_ones) == [False, True]
    for txn in open_ones:
        txn.put("more", "x")
    for txn, value in zip(open_ones, ("one", "two"), strict=True):
        expected = {"key-1": "value-1", value: value, "more": "x"}
        assert lab.begin(handle, 3, txn.commit()["id"]).rows == expected


def test_a_zombie_commits_late_without_harm(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    zombie = lab.begin(handle, 1, base)
    ids = lab.grow(handle, 4, start=1, commit_id=base)
    zombie.put("k", "zombie")
    zombie.commit()
    assert "k" not in lab.begin(handle, 5, ids[-1]).rows


def test_an_open_transaction_keeps_its_base_when_others_commit(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 2)
    newer = lab.begin(handle, 2, ids[1])
    reader = lab.begin(handle, 1, ids[0])
    assert newer.answer["live"]
    assert not reader.answer["live"]
    newer.commit()
    lab.grow(handle, 5, start=2, commit_id=ids[1])
    assert read_rows(reader.answer) == {"key-1": "value-1"}
    reader.abort()


def test_begin_again_finds_the_base_when_the_live_database_has_moved_on(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    slow, fast = lab.begin(handle, 1, base), lab.begin(handle, 1, base)
    fast.put("k", "v")
    fast.commit()
    lab.server.settled()
    with pytest.raises(AssertionError, match="marker"):
        read_rows(slow.answer)  # what a reader that catches up too late sees, and must not use
    assert lab.begin(handle, 1, base).rows == {"key-1": "value-1"}


def test_abort_leaves_no_trace(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    txn = lab.begin(handle, 1, base, attempt=7)
    txn.put("k", "v")
    txn.stage()
    txn.abort()
    txn.abort()
    assert not Path(txn.answer["staging"]).exists()
    assert list((lab.local_dir / "tickets").iterdir()) == []
    assert len(lab.objects()) == 1
    with pytest.raises(CallError) as caught:
        txn.commit()
    assert caught.value.kind == "LifecycleError"


def test_abort_of_an_unknown_transaction_is_no_error(lab: Lab) -> None:
    assert lab.server.call("abort", txn=12345) == {}


def test_begin_finds_neither_a_wrong_id_nor_a_version_that_never_was(lab: Lab) -> None:
    handle = lab.open()
    lab.grow(handle, 1)
    with pytest.raises(CallError) as wrong:
        lab.begin(handle, 1, "abc")
    with pytest.raises(CallError) as never:
        lab.begin(handle, 9, "abc")
    assert (wrong.value.kind, never.value.kind) == ("NotFoundError", "NotFoundError")
    assert "version 1 was committed as" in wrong.value.message
    assert "was never committed, or its objects are lost" in never.value.message
    assert f"{lab.remote} has version 1, and no snapshot" in never.value.message
    for error in (wrong.value, never.value):
        assert "operator 0, partition 3" in error.message
        assert error.hint


def test_begin_refuses_another_number_of_partitions(lab: Lab) -> None:
    handle = lab.open()
    done = lab.begin(handle, 0, num_partitions=4).commit(num_partitions=4)
    assert lab.begin(handle, 1, done["id"], num_partitions=4).answer["num_partitions"] == 4
    assert lab.begin(handle, 1, done["id"]).answer["num_partitions"] == 4
    with pytest.raises(CallError, match="written with 4 partitions") as caught:
        lab.begin(handle, 1, done["id"], num_partitions=5)
    assert caught.value.kind == "InvalidInputError"


def test_a_ticket_leads_a_worker_to_the_transaction(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    txn = lab.begin(handle, 1, base, attempt=42)
    path = ticket_path(lab.local_dir, WorkerTask(42), Identity(0, 3, "default"))
    ticket = read_ticket(path)
    assert (ticket.db, ticket.staging, ticket.version) == (txn.answer["db"], txn.answer["staging"], 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    txn.commit()
    lab.server.settled()
    assert not path.exists()


def test_local_folders_are_for_this_user_only(lab: Lab) -> None:
    handle = lab.open()
    txn = lab.begin(handle, 0)
    for folder in (lab.local_dir, lab.local_dir / "stores", Path(txn.answer["staging"]), Path(txn.answer["db"]).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_states_keep_their_numbers_and_numbers_are_never_reused(lab: Lab) -> None:
    handle = lab.open()
    txn = lab.begin(handle, 0)

    def create(number: int, name: str, **more: bool) -> int:
        answer = lab.server.call("create_state", txn=number, name=name, descriptor={**DESCRIPTOR, **more})
        return int(answer["number"])

    assert [create(txn.number, "a"), create(txn.number, "b", ordered=True), create(txn.number, "a")] == [1, 0x8002, 1]
    done = lab.server.call("commit", txn=txn.number, files=[])
    txn = lab.begin(handle, 1, done["id"])
    lab.server.call("drop_state", txn=txn.number, name="a")
    assert create(txn.number, "a") == 3
    with pytest.raises(CallError, match="ordered=True"):
        create(txn.number, "b", ordered=False)
    with pytest.raises(CallError, match="multiple_values"):
        create(txn.number, "b", ordered=True, multiple_values=True)


def test_commit_refuses_row_counts_that_cannot_be(lab: Lab) -> None:
    handle = lab.open()
    for rows in ({"9": 1}, {"x": 1}, {"1": -1}):
        txn = lab.begin(handle, 0)
        txn.put("k", "v")
        with pytest.raises(CallError) as caught:
            lab.server.call("commit", txn=txn.number, files=[txn.stage()], rows=rows)
        assert caught.value.kind == "InvalidInputError"
    assert lab.objects() == []


@pytest.mark.parametrize("name", ["../x.sst", "/etc/passwd", "missing.sst", "link.sst", ".sst"])
def test_commit_takes_only_files_of_its_staging_folder(lab: Lab, name: str) -> None:
    txn = lab.begin(lab.open(), 0)
    (Path(txn.answer["staging"]) / "link.sst").symlink_to(lab.local_dir / "server.lock")
    with pytest.raises(CallError) as caught:
        lab.server.call("commit", txn=txn.number, files=[name])
    assert caught.value.kind == "InvalidInputError"


def test_a_commit_whose_files_lack_the_marker_row_is_refused(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    txn = lab.begin(handle, 1, base)
    txn.put("k", "v")
    txn.answer["next_marker_value"] = txn.answer["marker_value"]
    with pytest.raises(CallError, match="marker") as caught:
        txn.commit()
    assert caught.value.kind == "StorageError"
    assert lab.begin(handle, 1, base).rows == {"key-1": "value-1"}


def test_opens_of_one_folder_share_one_store(lab: Lab) -> None:
    first, second = lab.open(), lab.open()
    ids = lab.grow(first, 1)
    assert lab.begin(second, 1, ids[0]).answer["live"]
    assert lab.server.call("stats")["open_stores"] == 1
    lab.server.call("close", handle=first)
    assert lab.begin(second, 1, ids[0]).rows
    lab.server.call("close", handle=second)
    assert list((lab.local_dir / "stores").iterdir()) == []
    with pytest.raises(CallError) as caught:
        lab.begin(second, 1, ids[0])
    assert (caught.value.kind, caught.value.retryable) == ("LifecycleError", True)


def test_a_run_has_the_options_it_was_started_with_while_handles_of_the_run_before_are_open(lab: Lab) -> None:
    old = lab.open("run-1")
    (first,) = lab.grow(old, 1)
    new = lab.open("run-2", options={**lab.options, "snapshotEveryVersions": "1"})
    third = lab.grow(new, 2, 1, first)[-1]
    assert lab.begin(old, 1, first).rows == expected(1), "what the run before has open goes on"
    lab.server.call("close", handle=old)
    txn = lab.begin(new, 3, third)
    assert (txn.rows, txn.answer["live"]) == (expected(3), True), "its local files are its own"
    assert lab.server.call("snapshot", handle=new)["version"] == 3
    txn.abort()
    lab.restart()
    assert lab.begin(lab.open("run-3"), 3, third).answer["metrics"]["restored"] == 0, "the next process finds them"


def test_begin_makes_no_remote_request_when_the_version_is_live(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 2)
    for path in lab.remote.iterdir():
        path.unlink()
    lab.remote.rmdir()
    assert lab.begin(handle, 2, ids[-1]).rows
    assert lab.begin(handle, 1, ids[0]).rows


def test_local_checkpoints_stay_few(lab: Lab) -> None:
    lab.grow(lab.open(), 12)
    lab.server.settled()
    (store,) = (lab.local_dir / "stores").iterdir()
    assert len(list(store.iterdir())) == 3  # live, and two frozen versions


def test_errors_cross_the_boundary_with_kind_and_hint(lab: Lab) -> None:
    for method, request in (("nonsense", {}), ("begin", {"handle": "x"}), ("begin", {"handle": 1, "versoin": 1})):
        with pytest.raises(CallError) as caught:
            lab.server.call(method, **request)
        assert caught.value.kind == "InvalidInputError"


def test_a_local_file_system_error_is_a_storage_error(lab: Lab) -> None:
    if os.geteuid() == 0:
        (lab.checkpoint / "state").mkdir(parents=True)
        (lab.checkpoint / "state" / "0").write_text("in the way")
    else:
        lab.checkpoint.mkdir(mode=0o500)
    txn = lab.begin(lab.open(), 0)
    with pytest.raises(CallError) as caught:
        txn.commit()
    assert caught.value.kind == "StorageError"
    assert caught.value.retryable


def test_begin_on_the_live_version_takes_milliseconds(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 1)
    times = []
    for _ in range(20):
        started = time.monotonic()
        answer = lab.server.call("begin", handle=handle, version=1, id=ids[0])
        times.append(time.monotonic() - started)
        lab.server.call("abort", txn=answer["txn"])
    assert min(times) < 0.02


def test_a_commit_leaves_the_ticket_of_the_next_partition_in_the_same_task(lab: Lab) -> None:
    for turn in range(20):
        first = lab.begin(lab.open(), 0, attempt=turn)
        first.put("k", "v")
        first.commit()
        second = lab.begin(lab.open(partition=4, state_dir=str(lab.remote.with_name("4"))), 0, attempt=turn)
        lab.server.settled()
        (ticket,) = (lab.local_dir / "tickets").iterdir()
        assert (read_ticket(ticket).partition, read_ticket(ticket).staging) == (4, second.answer["staging"])
        second.abort()


def test_a_store_goes_on_when_its_local_files_could_not_be_tidied_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    lab.server.settled()
    with monkeypatch.context() as broken:
        broken.setattr(LocalCopies, "prune", _out_of_order)
        txn = lab.begin(handle, 1, base)
        txn.put("k", "v")
        newer = txn.commit()["id"]
        lab.server.settled()
    assert "could not be tidied up" in caplog.text
    assert lab.begin(handle, 2, newer).rows == {"key-1": "value-1", "k": "v"}


def test_no_folder_is_left_when_a_local_checkpoint_cannot_be_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 2)
    lab.server.settled()
    (store,) = (lab.local_dir / "stores").iterdir()
    before = set(store.iterdir())
    with monkeypatch.context() as broken:
        broken.setattr(Database, "checkpoint", _out_of_order)
        newer = lab.grow(handle, 1, 2, ids[-1])
        lab.server.settled()
    assert set(store.iterdir()) <= before
    assert len(lab.begin(handle, 3, newer[-1]).rows) == 3


def _out_of_order(*_: object) -> None:
    raise OSError("planted")
