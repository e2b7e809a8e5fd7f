"""Feeds of what single versions have changed, and versions that are replayed from one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.database import Database
from tests.labs.lab import TUNING, CallError, Lab, Rows, Txn, damage, expected


def _open(lab: Lab, handle: int, first: int, last: int, commit_id: str | None = None) -> int:
    feed: int = lab.server.call("open_changes", handle=handle, first=first, last=last, id=commit_id)["feed"]
    return feed


def _read(lab: Lab, feed: int, scratch: Path) -> Iterator[tuple[int, Rows]]:
    """Versions and the rows that their deltas put; tombstones are the shim's business."""
    while (answer := lab.server.call("next_changes", feed=feed))["version"] is not None:
        database = Database(scratch / str(answer["version"]), TUNING)
        database.ingest([Path(file) for file in answer["files"]])
        yield (
            answer["version"],
            {key[6:].decode(): value.decode() for key, value in database.rows() if key[:2] != b"\0\0"},
        )
        database.close()


def _feed_folders(lab: Lab) -> list[Path]:
    return list((lab.local_dir / "staging").glob("changes-*"))


def test_a_feed_gives_what_each_version_has_put_in_their_order(lab: Lab, tmp_path: Path) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 6)
    found = list(_read(lab, _open(lab, handle, 2, 5, ids[4]), tmp_path))
    assert found == [(version, {f"key-{version}": f"value-{version}"}) for version in (2, 3, 4, 5)]


def test_a_feed_keeps_two_deltas_at_most_on_local_disk(lab: Lab, tmp_path: Path) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 6)
    feed = _open(lab, handle, 1, 6, ids[-1])
    (folder,) = _feed_folders(lab)
    for _ in _read(lab, feed, tmp_path):
        assert 1 <= len(list(folder.iterdir())) <= 2
    lab.server.call("close_changes", feed=feed)
    lab.server.call("close_changes", feed=feed)
    assert _feed_folders(lab) == []
    with pytest.raises(CallError, match="not open") as caught:
        lab.server.call("next_changes", feed=feed)
    assert caught.value.kind == "LifecycleError"


def test_a_feed_ends_with_the_handle_that_opened_it(lab: Lab) -> None:
    handle, other = lab.open(), lab.open()
    ids = lab.grow(handle, 2)
    feeds = [_open(lab, each, 1, 2, ids[-1]) for each in (handle, other)]
    lab.server.call("close", handle=handle)
    assert len(_feed_folders(lab)) == 1
    assert lab.server.call("next_changes", feed=feeds[1])["version"] == 1


@pytest.mark.parametrize("fmt", [1, 2])
def test_a_feed_follows_the_commit_that_stands_when_an_attempt_has_lost(fmt: int, lab: Lab, tmp_path: Path) -> None:
    handle = lab.open(fmt=fmt)
    (base,) = lab.grow(handle, 1)
    winner, loser = lab.begin(handle, 1, base), lab.begin(handle, 1, base)
    winner.put("who", "winner")
    loser.put("who", "loser")
    stands = (loser.commit() if fmt == 2 else winner.commit())["id"]
    last = winner.commit() if fmt == 2 else loser.commit()
    assert (last["id"] == stands) == (fmt == 1)
    ids = lab.grow(handle, 1, 2, stands)
    found = dict(_read(lab, _open(lab, handle, 2, 3, ids[0] if fmt == 2 else None), tmp_path))
    assert found == {2: {"who": "loser" if fmt == 2 else "winner"}, 3: {"key-3": "value-3"}}


def test_a_feed_finds_its_end_in_the_commit_log_when_no_id_is_given(lab: Lab, tmp_path: Path) -> None:
    handle = lab.open()
    txns = [lab.begin(handle, 0), lab.begin(handle, 0)]
    for number, txn in enumerate(txns):
        txn.put("who", str(number))
    ids = [txn.commit()["id"] for txn in txns]
    lab.log_commit(0, ids[1:])
    assert list(_read(lab, _open(lab, handle, 1, 1), tmp_path)) == [(1, {"who": "1"})]


def test_a_feed_names_the_batches_there_are_when_older_ones_are_retired(lab: Lab) -> None:
    ids = lab.grow_with_snapshots(6)
    handle = lab.open()
    for name in lab.objects(".delta")[:3]:
        (lab.remote / name).unlink()
    with pytest.raises(
        CallError, match=r"changes of batch 2 \(version 3\) are missing; batches 3 to 5 can be read"
    ) as caught:
        _open(lab, handle, 1, 6, ids[-1])
    assert caught.value.kind == "NotFoundError"
    assert "minBatchesToRetain" in caught.value.hint
    assert _feed_folders(lab) == []


@pytest.mark.parametrize(
    ("first", "last", "kind", "message"),
    [
        (1, 9, "NotFoundError", "never committed"),
        (1, 2, "NotFoundError", "does not exist"),
        (0, 2, "InvalidInputError", "versions 0 to 2"),
        (3, 2, "InvalidInputError", "versions 3 to 2"),
    ],
)
def test_a_feed_of_versions_that_never_were_is_refused(
    first: int, last: int, kind: str, message: str, lab: Lab
) -> None:
    handle = lab.open()
    lab.grow(handle, 2)
    with pytest.raises(CallError, match=message) as caught:
        _open(lab, handle, first, last, "f" * 32)
    assert caught.value.kind == kind


def test_a_damaged_delta_is_named_behind_the_deltas_before_it(lab: Lab, tmp_path: Path) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    name = lab.objects(".delta")[1]
    damage(lab.remote / name)
    read = _read(lab, _open(lab, handle, 1, 3, ids[-1]), tmp_path)
    assert next(read)[0] == 1
    with pytest.raises(CallError, match=name) as caught:
        next(read)
    assert caught.value.kind == "FormatError"


def _replay(lab: Lab, handle: int, start: int, version: int, commit_id: str, **more: object) -> Txn:
    answer = lab.server.call("replay", handle=handle, start=start, version=version, id=commit_id, **more)
    return Txn(lab.server, answer)


def test_a_replay_starts_from_the_snapshot_that_is_asked_for(lab: Lab) -> None:
    ids = lab.grow_with_snapshots(7)
    handle = lab.open()
    for start in (2, 4, 6):
        txn = _replay(lab, handle, start, 7, ids[-1], start_id=ids[start - 1])
        assert txn.rows == expected(7)
        assert not txn.answer["live"]
        assert txn.answer["metrics"]["replayed_deltas"] == 7 - start
        txn.abort()
    assert _replay(lab, handle, 4, 4, ids[3]).rows == expected(4)


def test_a_replay_leaves_no_local_copy_behind(lab: Lab) -> None:
    ids = lab.grow_with_snapshots(3)
    handle = lab.open()
    before = {path.parent.parent for path in lab.local_dir.rglob("db/CURRENT")}
    txn = _replay(lab, handle, 2, 3, ids[-1])
    folder = Path(txn.answer["db"]).parent
    assert folder.exists()
    assert lab.begin(handle, 3, ids[-1]).answer["db"] != txn.answer["db"]
    txn.abort()
    lab.server.settled()
    assert not folder.exists()
    assert before == {path.parent.parent for path in lab.local_dir.rglob("db/CURRENT")}


@pytest.mark.parametrize(("start", "start_id"), [(3, None), (1, None), (2, "f" * 32)])
def test_a_replay_names_the_snapshots_there_are_when_this_one_is_none(
    start: int, start_id: str | None, lab: Lab
) -> None:
    ids = lab.grow_with_snapshots(5)
    handle = lab.open()
    with pytest.raises(
        CallError, match=rf"no snapshot of batch {start - 1} .*; there are snapshots of batches 1, 3\."
    ) as caught:
        _replay(lab, handle, start, 5, ids[-1], start_id=start_id)
    assert caught.value.kind == "NotFoundError"


def test_a_replay_takes_no_snapshot_of_an_attempt_that_lost(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    loser, winner = lab.begin(handle, 1, base), lab.begin(handle, 1, base)
    loser.put("who", "loser")
    winner.put("who", "winner")
    lost, won = loser.commit()["id"], winner.commit()["id"]
    lab.begin(handle, 2, lost).abort()
    lab.server.call("snapshot", handle=handle, force=True)
    (last,) = lab.grow(handle, 1, 2, won)
    assert [name for name in lab.objects(".snapshot") if lost in name]
    with pytest.raises(CallError, match="there is none at all"):
        _replay(lab, handle, 2, 3, last)


def test_a_replay_takes_no_other_snapshot_when_this_one_is_damaged(lab: Lab) -> None:
    ids = lab.grow_with_snapshots(5)
    handle = lab.open()
    name = lab.objects(".snapshot")[-1]
    damage(lab.remote / name)
    with pytest.raises(CallError, match=name) as caught:
        _replay(lab, handle, 4, 5, ids[-1])
    assert caught.value.kind == "FormatError"


@pytest.mark.parametrize(("start", "version"), [(0, 2), (3, 2)])
def test_a_replay_from_behind_its_end_is_refused(start: int, version: int, lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 2)
    with pytest.raises(CallError, match=f"version {version} cannot be replayed from version {start}"):
        _replay(lab, handle, start, version, ids[-1])
